"""`agentq approvals` as it is typed, on a real server: what it decides, prints and refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from agentq import AgentQ, tool
from agentq.cli.inbox import span
from agentq.cli.session import Session
from agentq.core.errors import ConflictError, UsageError
from agentq.core.records import Delta
from agentq.provider.scripted import ScriptedClient
from agentq.store import Store
from agentq.store.approvals import Wanted
from tests.support.harness import claim_run, open_batch, state_of, submit_run
from tests.unit.cli.fakes import invoke

ARGUMENTS = '{"order": "1001", "reason": "läte"}'
WEEK_MS = 7 * 86_400_000
SAID = '{"role":"assistant","content":"I will cancel it.","tool_calls":[]}'


def wait(store: Store, run_id: str, *calls: str, name: str = "cancel_order", **asked: Any) -> None:
    """A run that waits for a person to decide on these calls."""
    submit_run(store, run_id, batch=asked.pop("batch", None), custom_id=f"t-{run_id}")
    pending = [
        {
            "id": call,
            "tool": name,
            "arguments": ARGUMENTS,
            "signature": f"{name}:1",
            "asked_at_ms": store.watch.server_ms(),
            "default": "stop",
            "kind": "approval",
        }
        | asked
        for call in calls
    ]
    lease = claim_run(store, run_id).lease
    store.runs.commit_wait(lease, Delta("{}", messages=(SAID,)), None, pending, WEEK_MS)


def typed(*args: str, code: int = 0, input: str | None = None) -> Result:
    done = invoke("approvals", *args, input=input)
    assert done.exit_code == code, (args, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done


def decided(store: Store, run_id: str, call: str = "c1") -> tuple[str, str, str]:
    found = store.approvals.decisions(run_id)[call]
    return found.verdict, found.by, found.reason


# ── look ─────────────────────────────────────────────────────────────────────────────────────────────


def test_list_shows_what_waits_and_what_to_type(store: Store) -> None:
    wait(store, "run_a", "c1", "c2")
    wait(store, "run_b", "c1", kind="unknown", name="charge")
    shown = typed("list")
    head, first, second, third = shown.stdout.splitlines()
    assert head.split() == ["id", "custom_id", "left", "call"]
    assert first.startswith("run_a:c1  t-run_a    6d 23h  cancel_order(")
    assert second.startswith("run_a:c2")
    assert "again? charge(" in third
    assert "agentq approvals show ID" in shown.stderr


def test_list_takes_filters_and_a_limit_and_says_what_it_leaves_out(store: Store) -> None:
    for n in range(3):
        wait(store, f"run_{n}", "c1")
    assert len(typed("list", "--limit", "2").stdout.splitlines()) == 3
    assert "… and 1 more; --limit 3 shows all" in typed("list", "--limit", "2").stderr
    assert [item["run"] for item in json.loads(typed("list", "run=run_1", "--json").stdout)] == ["run_1"]
    assert len(json.loads(typed("list", "--json").stdout)) == 3


def test_an_empty_inbox_is_said_and_a_filter_that_means_nothing_names_the_nearest_tool(store: Store) -> None:
    assert typed("list").stderr == "no call waits for a decision\n"
    wait(store, "run_a", "c1")
    shown = typed("list", "tool=cancel_ordr")
    assert shown.stderr == "no call waits where tool=cancel_ordr (did you mean 'cancel_order'?)\n"
    assert "did you mean 'batch'" in typed("list", "bach=b1", code=2).stderr


def test_show_says_all_that_a_decision_needs(store: Store) -> None:
    wait(store, "run_a", "c1", default="tell")
    shown = typed("show", "run_a").stdout
    for line in (
        "run_a:c1: cancel_order",
        "  agent a, tenant acme, custom_id t-run_a",
        '      "reason": "läte"',
        "the model is told that nobody has decided, and goes on",
        "    I will cancel it.",
    ):
        assert line in shown
    fields = json.loads(typed("show", "run_a:c1", "--json").stdout)
    assert fields["arguments"] == json.loads(ARGUMENTS)
    assert fields["messages"][-1]["content"] == "I will cancel it."


def test_show_says_of_a_call_that_may_have_acted_what_each_decision_means(store: Store) -> None:
    wait(store, "run_a", "c1@3", kind="unknown")
    shown = typed("show", "run_a").stdout
    assert "nobody knows whether it has acted" in shown
    assert "approve makes it again with the same idempotency key, deny does not" in shown
    assert "undecided at" in shown
    assert "the run ends as approval_expired" in shown


@pytest.mark.parametrize(
    "milliseconds, said",
    [(7 * 86_400_000 - 1, "6d 23h"), (3_600_000, "1h 0m"), (65_000, "1m 5s"), (1_000, "1s"), (999, "over")],
)
def test_what_is_left_is_said_in_two_units(milliseconds: int, said: str) -> None:
    assert span(milliseconds) == said


def test_status_says_how_many_wait_for_a_person_also_outside_batches(store: Store) -> None:
    wait(store, "run_a", "c1", "c2")
    shown = invoke("status")
    assert "1 run waiting for a person: agentq approvals list\n" in shown.stdout
    assert json.loads(invoke("status", "--json").stdout)["asking"] == 1


# ── which call ───────────────────────────────────────────────────────────────────────────────────────


def test_the_beginning_of_an_id_is_enough_where_it_is_one_call_s(store: Store) -> None:
    wait(store, "run_abc", "c1")
    wait(store, "run_abd", "c1", "c10")
    assert "'run_ab' may mean 3 calls, among them run_a" in typed("approve", "run_ab", code=2).stderr
    assert "'run_abd' may mean 2 calls" in typed("approve", "run_abd", code=2).stderr
    typed("approve", "run_abd:c1")  # all of an id, although another one begins so
    assert [call.id for call in _pending(store, "run_abd")] == ["c10"]
    typed("approve", "run_abc")
    assert state_of(store, "run_abc") == "queued"


def _pending(store: Store, run_id: str) -> Any:
    record = store.runs.read(run_id)
    assert record is not None
    return record.pending


def test_what_is_no_call_that_waits_is_said_in_one_sentence(store: Store) -> None:
    wait(store, "run_abc", "c1")
    submit_run(store, "run_q")
    for word, sentence in (
        ("zzz", "no call waits under the id 'zzz'"),
        ("run_abd:c1", "no call waits under the id 'run_abd:c1' (did you mean 'run_abc:c1'?)"),
        ("run_abc:c9", "no call 'c9' of run run_abc waits for a decision"),
        ("run_q", "run run_q does not wait for a decision: it is queued"),
    ):
        assert f"error: {sentence}\n" in typed("approve", word, code=2).stderr
    assert "--where batch=b1" in typed("approve", "batch=b1", code=2).stderr


# ── decide ───────────────────────────────────────────────────────────────────────────────────────────


def test_one_call_is_approved_or_denied_by_whoever_types(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentq.cli.approvals.me", lambda: "mira@desk")
    wait(store, "run_a", "c1", "c2")
    said = typed("approve", "run_a:c1", "--reason", "fine").stdout
    assert said == "run_a:c1 is approved: 1 call of its run still to be decided\n"
    assert decided(store, "run_a") == ("approve", "mira@desk", "fine")
    said = typed("deny", "run_a:c2", "--by", "ann", "--json").stdout
    assert json.loads(said) == {"id": "run_a:c2", "verdict": "deny", "left": 0}
    assert decided(store, "run_a", "c2") == ("deny", "ann", "")


def test_who_was_first_is_named_with_exit_code_2(store: Store) -> None:
    wait(store, "run_a", "c1")
    typed("deny", "run_a", "--by", "ann", "--reason", "no")
    late = typed("approve", "run_a:c1", "--by", "bob", code=2)
    assert late.stderr.startswith("error: run_a:c1 was denied by ann at 20")
    assert "UTC (no), and the first decision counts" in late.stderr
    assert late.stdout == ""


def test_of_several_the_rest_is_decided_and_the_others_are_counted(store: Store) -> None:
    for name in ("run_a", "run_b"):
        wait(store, name, "c1")
    typed("deny", "run_a", "--by", "ann")
    both = typed("approve", "run_a:c1", "run_b:c1", "--by", "bob").stdout
    assert both == "1 call approved\n  1 call denied before by ann\n"
    again = typed("approve", "run_a:c1", "run_b:c1", code=2).stderr
    assert "all 2 calls were decided before; run_a:c1 was denied by ann" in again


def test_a_call_that_is_named_twice_is_decided_once(store: Store) -> None:
    wait(store, "run_a", "c1")
    assert typed("approve", "run_a", "run_a:c1").stdout == "1 call approved\n"


def test_bulk_asks_first_with_a_count_and_decides_only_what_is_meant(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_batch(store)
    for n in range(3):
        wait(store, f"run_{n}", "c1", batch="b1")
    wait(store, "run_x", "c1")
    alone = typed("approve", "--where", "batch=b1", code=2).stderr
    assert "there is nobody to ask here whether to approve 3 calls (3 cancel_order)\n  -y says yes" in alone
    monkeypatch.setattr("agentq.cli.console.Console.can_ask", property(lambda self: True))
    refused = typed("deny", "--where", "batch=b1", code=2, input="n\n").stderr
    assert "Deny 3 calls (3 cancel_order)?" in refused
    assert "nothing was decided" in refused
    assert (
        typed("approve", "--where", "batch=b1 tool=cancel_order", input="y\n").stdout == "3 calls approved\n"
    )
    assert state_of(store, "run_x") == "waiting"
    done = json.loads(typed("deny", "--all", "-y", "--json").stdout)
    assert done == {"verdict": "deny", "decided": 1, "taken": [], "expired": 0, "closed": 0}
    assert typed("approve", "--all").stdout == "no call waits for a decision\n"
    assert json.loads(typed("approve", "--all", "--json").stdout)["decided"] == 0


def test_what_is_decided_while_bulk_asks_is_reported_as_somebody_else_s(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(2):
        wait(store, f"run_{n}", "c1")
    monkeypatch.setattr("agentq.cli.console.Console.can_ask", property(lambda self: True))

    def confirm(*_: Any, **__: Any) -> bool:
        store.approvals.decide([Wanted("run_0", "c1", "deny", "ann")])
        return True

    monkeypatch.setattr("click.confirm", confirm)
    assert typed("approve", "--all").stdout == "1 call approved\n  1 call denied before by ann\n"


@pytest.mark.parametrize(
    "args", [[], ["run_a", "--all"], ["--all", "--where", "tool=x"], ["run_a", "--where", "tool=x"]]
)
def test_which_calls_are_meant_is_said_in_one_way(store: Store, args: list[str]) -> None:
    assert "say which calls: some IDs, --where, or --all" in typed("deny", *args, code=2).stderr


# ── edited arguments ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "given, sentence",
    [
        (
            "{order: 1}",
            "--arguments: not JSON: expecting property name enclosed in double quotes at line 1, column 2",
        ),
        ("[1]", "--arguments: the arguments must be a JSON object, not [1]"),
        ("[" * 100_000, "--arguments: nested too deeply"),
        ('{"order": ' + "9" * 5_000 + "}", "--arguments: cannot be read: Exceeds the limit (4300 digits)"),
        ("@nofile", "nofile cannot be read: No such file or directory"),
        ("@bad.json", "bad.json: not JSON: expecting value at line 2, column 1"),
        ('{"n": NaN}', "the arguments for cancel_order are no JSON"),
    ],
)
def test_arguments_that_cannot_be_are_refused_with_the_place(store: Store, given: str, sentence: str) -> None:
    wait(store, "run_a", "c1")
    Path("bad.json").write_text("\n}")
    assert f"error: {sentence}" in typed("approve", "run_a", "--arguments", given, code=2).stderr
    assert state_of(store, "run_a") == "waiting"


def test_arguments_come_from_a_file_and_without_an_app_nobody_has_checked_them(store: Store) -> None:
    wait(store, "run_a", "c1")
    Path("new.json").write_text('{"order": "2"}')
    said = typed("approve", "run_a", "--arguments", "@new.json")
    assert "its arguments were not checked: -A names the app" in said.stderr
    assert store.approvals.decisions("run_a")["c1"].arguments == '{"order":"2"}'


def test_arguments_are_for_one_call(store: Store) -> None:
    for args in (["--all", "-y"], ["run_a", "run_b"]):
        assert "--arguments is for one call" in typed("approve", *args, "--arguments", "{}", code=2).stderr


def test_what_may_have_acted_is_made_again_as_it_was(store: Store) -> None:
    wait(store, "run_a", "c1@3", kind="unknown")
    said = typed("approve", "run_a", "--arguments", "{}", code=2).stderr
    assert "may have acted already: it is made again as it was, or not at all" in said


# ── from Python ──────────────────────────────────────────────────────────────────────────────────────


@tool(side_effect=True, requires_approval=True)
def cancel_order(order: str, reason: str) -> str:
    """Cancel an order."""
    return order + reason


@pytest.fixture
def app(store: Store, monkeypatch: pytest.MonkeyPatch) -> AgentQ:
    """An app that knows the agent."""
    app = AgentQ("approving", namespace=store.keys.namespace)
    app.agent("a", model=ScriptedClient(["done"]), tools=[cancel_order])
    monkeypatch.setattr(Session, "server_app", lambda self: app)
    return app


def test_where_the_app_is_known_arguments_are_checked_and_the_field_is_named(
    store: Store, app: AgentQ
) -> None:
    wait(store, "run_a", "c1")
    said = typed("approve", "run_a", "--arguments", '{"ordre": "2", "reason": "r"}', code=2).stderr
    assert "the arguments do not fit cancel_order" in said
    assert "'ordre' is not an argument (they are: order, reason)" in said
    assert typed("approve", "run_a", "--arguments", '{"order": "2", "reason": "r"}').stderr == ""


def test_an_approval_has_what_a_form_needs_and_is_decided_by_its_methods(store: Store, app: AgentQ) -> None:
    wait(store, "run_a", "c1", "c2")
    first, second = app.approvals("run=run_a")
    assert (first.id, first.run_id, first.tool) == ("run_a:c1", "run_a", "cancel_order")
    assert first.arguments == json.loads(ARGUMENTS)
    assert (first.deadline - first.asked_at).days in {6, 7}
    assert first.asked_at.tzinfo is not None
    assert (first.agent, first.tenant, first.custom_id, first.kind) == ("a", "acme", "t-run_a", "approval")
    assert first.thread().messages[-1].content == "I will cancel it."
    with pytest.raises(UsageError, match="'order': Input should be a valid string"):
        first.approve(by="ann", arguments={"order": 2, "reason": "r"})
    with pytest.raises(UsageError, match="are no JSON"):
        first.approve(by="ann", arguments={"order": object()})
    assert first.approve(by="ann", arguments={"order": "2", "reason": "r"}) == 1
    with pytest.raises(ConflictError, match="was approved by ann"):
        first.deny(by="bob")
    assert second.deny(by="bob", reason="no") == 0
    assert app.approvals() == []


def test_many_are_decided_from_python_by_what_they_are(store: Store, app: AgentQ) -> None:
    for n in range(3):
        wait(store, f"run_{n}", "c1")
    wait(store, "run_x", "c1", name="charge")
    with pytest.raises(UsageError, match="there is no filter 'tol'"):
        app.approve_all("tol=charge", by="ann")
    assert app.approve_all({"tool": "cancel_order"}, by="ann").decided == 3
    assert app.deny_all(None, by="ann", reason="no").decided == 1
    assert decided(store, "run_x") == ("deny", "ann", "no")
    assert app.approve_all(None, by="ann").decided == 0


def test_where_takes_the_terms_that_follow_it_as_the_other_verbs_do(store: Store) -> None:
    open_batch(store)
    wait(store, "run_a", "c1", batch="b1")
    wait(store, "run_b", "c1", batch="b1")
    assert typed("approve", "-y", "--where", "batch=b1", "custom_id=t-run_b").stdout == "1 call approved\n"
    assert [state_of(store, name) for name in ("run_a", "run_b")] == ["waiting", "queued"]
    assert "only one of them" in typed("deny", "-y", "--where", "batch=b1", "run_a", code=2).stderr


def test_a_batch_that_there_is_not_is_refused_in_the_words_of_status(store: Store) -> None:
    wait(store, "run_a", "c1")
    sentence = invoke("status", "nope").stderr
    assert "there is no batch 'nope'" in sentence
    assert typed("list", "batch=nope", code=2).stderr == sentence
    assert typed("approve", "-y", "--where", "batch=nope", code=2).stderr == sentence


def test_a_decision_on_a_paused_run_says_that_it_does_not_go_on_yet(store: Store) -> None:
    open_batch(store)
    wait(store, "run_a", "c1")
    wait(store, "run_b", "c1", batch="b1")
    invoke("pause", "run_a")
    invoke("pause", "b1", "-y")
    assert typed("approve", "run_a").stdout == (
        "run_a:c1 is approved: its run is paused, agentq resume run_a lets it go on\n"
    )
    assert typed("deny", "run_b").stdout == (
        "run_b:c1 is denied: its batch is paused, agentq resume b1 lets it go on\n"
    )
