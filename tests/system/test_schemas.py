"""What `--json` of each verb writes, from the real command, against its schema in docs/schemas."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import click
import pytest
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from agentq.cli.group import main
from tests.support.desk import ROOT, Desk, nap, naps, open_desk, refund
from tests.support.wait import wait_until

pytestmark = [pytest.mark.system, pytest.mark.timeout(240), pytest.mark.xdist_group("schemas")]

FOLDER = ROOT / "docs/schemas"
SCHEMAS = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
SHARED = "common"
WITHOUT_DATA = {"up", "worker"}
"""They work until they are stopped, and write messages only."""
LINES = {"watch", "wait", "results", "ledger-export"}
"""A JSON object a line."""
Typed = Callable[[Desk], str]


def after(desk: Desk, first: str, words: str) -> str:
    """What is typed once something else was."""
    desk.type(*shlex.split(first))
    return words


CASES: dict[str, list[str | Typed]] = {
    "init": ["init first"],
    "demo": ["demo"],
    "submit": [
        "submit again.jsonl --agent helper --dry-run",
        "submit again.jsonl --agent helper",
        "submit again.jsonl --agent helper --wait",
        "submit again.jsonl --agent helper --batch weekly --every '0 8 * * 1'",
    ],
    "run": ["run greeter hi"],
    "status": ["status", "status first", "status asking", lambda desk: f"status {desk.run_ids('first')[0]}"],
    "watch": ["watch first"],
    "wait": ["wait first", "wait asking", "wait long --timeout 0.1"],
    "results": ["results first", "results failed", "results stopped", "results first --follow"],
    "runs": ["runs", "runs state:ended --since 1h --limit 1", "runs --where state:parked"],
    "show": [
        lambda desk, view=view: f"show {desk.run_ids('first')[0]} {view}"  # type: ignore[misc]
        for view in ("", "--messages", "--trace", "--raw")
    ],
    "batches": ["batches"],
    "schedules-list": ["schedules list", "schedules"],
    "schedules-show": ["schedules show daily"],
    "schedules-pause": ["schedules pause daily"],
    "schedules-resume": ["schedules resume daily"],
    "schedules-run": ["schedules run daily"],
    "schedules-remove": ["schedules remove spare -y"],
    "metrics": ["metrics first"],
    "budget-show": ["budget show", "budget show batch:first --runs"],
    "budget-set": ["budget set tenant:default@day --max-usd 100"],
    "budget-topup": [
        lambda desk: after(
            desk, "budget set tenant:default@day --max-usd 100", "budget topup tenant:default@day --usd 1"
        )
    ],
    "budget-freeze": ["budget freeze tenant:other"],
    "budget-unfreeze": ["budget unfreeze tenant:other"],
    "budget-winddown": ["budget winddown tenant:other"],
    "budget-charge": ["budget charge tenant:other --reason test --usd 1"],
    "budget-adjust": [
        lambda desk: after(
            desk,
            "budget charge tenant:other --reason test --usd 1",
            "budget adjust tenant:other --reason test --usd -0.5",
        )
    ],
    "ledger-verify": ["ledger verify"],
    "ledger-export": ["ledger export"],
    "prices-list": ["prices list --search gpt-5-mini"],
    "prices-check": ["prices check openai:gpt-5-mini", "prices check"],
    "limits-list": ["limits list"],
    "limits-resume": ["limits resume all"],
    "tune": ["tune first", "tune long --priority 3 --max-open 9 --at 'in 1h'", "tune long --at now"],
    "tenants-list": ["tenants list"],
    "tenants-limit": ["tenants limit --each 9", "tenants limit --each none"],
    "tenants-set": ["tenants set default --weight 2", "tenants set default --max-in-flight none"],
    "approvals-list": ["approvals list"],
    "approvals-show": [lambda desk: f"approvals show {desk.run_ids('asking')[0]}"],
    "approvals-approve": [
        lambda desk: f"approvals approve {desk.run_ids('asking')[0]}",
        "approvals approve --where custom_id=asking-2 -y",
    ],
    "approvals-deny": ["approvals deny --where custom_id=asking-1 -y"],
    "pause": [
        "pause long -y",
        lambda desk: f"pause {desk.run_ids('long')[0]}",
        "pause --where batch=long -y",
    ],
    "resume": ["resume long -y", "resume --where batch=long -y"],
    "cancel": ["cancel --where batch=long custom_id=long-1 -y", "cancel long -y"],
    "retry": [
        lambda desk: f"retry {desk.run_ids('stopped')[0]} --max-steps 5",
        "retry failed -y",
        lambda desk: f"retry {desk.run_ids('first')[0]} --from-step 1 -y",
    ],
    "completion": ["completion fish"],
    "doctor": ["doctor", "doctor --runs"],
    "chaos": ["chaos -A agents:app --agent greeter --only step.after_claim/none --passes 1 -y"],
    "fake-provider": ["fake-provider --faults"],
    "purge": ["purge first -y", "purge --where batch=late,failed -y", "purge --older-than 1w"],
    "down": ["down"],
}
if find_spec("genai_prices"):
    CASES |= {
        "prices-import": ["prices import -o prices.json"],
        "prices-diff": [lambda desk: after(desk, "prices import -o diffed.json", "prices diff diffed.json")],
    }
NOT_IN_CASES = {"prices-import", "prices-diff"} - CASES.keys()
JUDGING = {0, 1, 3, 4, 5, 6, 8}
"""Exit codes with which there is data too."""


@pytest.fixture(scope="module")
def desk() -> Iterator[Desk]:
    with open_desk() as desk:
        desk.submit("first", "helper", ["done"], [nap(0.01), "rested"])
        desk.submit("failed", "helper", [], codes=(3,))
        desk.submit("stopped", "hasty", [nap(0.01), "done"], codes=(4,))
        desk.submit("asking", "helper", *([refund(number), "done"] for number in range(3)), codes=(5,))
        desk.submit("remote", "remote", ["done"])
        desk.type("submit", desk.rows("long", naps(), naps()), "--agent", "helper")
        for name in ("daily", "spare"):
            desk.type("submit", desk.rows(name, ["done"]), "--agent", "helper", "--every", "0 8 * * *")
        desk.rows("again", ["done"])
        yield desk


def complaints(name: str, value: Any) -> list[str]:
    """What the schema of a verb has against this value."""
    registry: Registry[Any] = Registry().with_resources(
        [(f"{stem}.json", Resource.from_contents(schema)) for stem, schema in SCHEMAS.items()]
    )
    validator = Draft202012Validator(SCHEMAS[name], registry=registry)
    return [f"{error.json_path}: {error.message[:300]}" for error in validator.iter_errors(value)]


def verbs(group: click.Group, prefix: str = "") -> Iterator[str]:
    """All verbs, `budget show` as `budget-show`."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from verbs(command, f"{prefix}{name}-")
        else:
            yield f"{prefix}{name}"


def test_every_verb_that_writes_data_has_a_schema_and_a_test() -> None:
    expected = set(verbs(main)) - WITHOUT_DATA
    assert SCHEMAS.keys() - {SHARED} == expected
    assert CASES.keys() | NOT_IN_CASES == expected


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_is_one_and_says_what_it_is_about(name: str) -> None:
    schema = SCHEMAS[name]
    Draft202012Validator.check_schema(schema)
    assert schema["$id"] == f"{name}.json"
    assert schema["description"]


@pytest.mark.parametrize("name", [name for name in SCHEMAS if name != SHARED])
def test_a_schema_refuses_what_is_no_output_of_its_verb(name: str) -> None:
    assert complaints(name, {"nonsense": 1})
    assert complaints(name, "nonsense")


def test_the_lists_are_not_empty_where_there_is_something(desk: Desk) -> None:
    """An empty list would satisfy any schema."""
    for words in ("limits list", "prices list --search gpt-5-mini", "batches", "ledger export"):
        assert desk.type(*shlex.split(words), "--json").stdout.strip() not in {"", "[]"}, words


def test_a_fake_provider_says_where_it_is_in_a_line(desk: Desk) -> None:
    provider = desk.start("fake-provider", "--json")
    try:
        wait_until(lambda: "\n" in provider.output, "the provider to listen", 30)
        assert complaints("fake-provider", json.loads(provider.output.splitlines()[0])) == []
    finally:
        provider.end()


@pytest.mark.parametrize("name", CASES)
def test_what_a_verb_writes_is_as_its_schema_says(desk: Desk, name: str) -> None:
    for case in CASES[name]:
        words = case(desk) if callable(case) else case
        done = desk.type(*shlex.split(words), "--json", codes=JUDGING)
        written = done.stdout
        assert written, f"{words}: {done.stderr}"
        is_lines = name in LINES or "--wait" in words
        documents = [json.loads(line) for line in written.splitlines()] if is_lines else [json.loads(written)]
        assert documents, words
        for document in documents:
            assert complaints(name, document) == [], f"{words}: {document}"
        if name in {"watch", "wait"} or "--wait" in words:
            assert documents[-1]["type"] == "result"
