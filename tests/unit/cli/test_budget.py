"""`agentq budget` as it is typed, on a real server: what it changes, prints and refuses."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from click.testing import Result

from agentq.core.records import Delta, Parked, Settlement
from agentq.store import Store
from tests.support.harness import claim_run, open_batch, reserve, state_of, submit_run
from tests.unit.cli.fakes import invoke

NANO = 10**9


def typed(*args: str, code: int = 0) -> Result:
    done = invoke("budget", *args)
    assert done.exit_code == code, (args, done.stdout, done.stderr)
    return done


def document(*args: str) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(typed(*args, "--json").stdout)
    return shown


def spend(store: Store, run_id: str, *, usd: int, escrow: int = 0) -> None:
    lease = claim_run(store, run_id).lease
    reserve(store, lease, usd=usd, tokens=9, escrow_usd=escrow, escrow_tokens=0)
    store.runs.commit_continue(lease, Delta("{}"), Settlement(f"{lease.fence}:1", "settle", usd, 9))


def park(store: Store, run_id: str, *, usd: int) -> None:
    parked = reserve(store, claim_run(store, run_id).lease, usd=usd, tokens=1, policy="park")
    assert isinstance(parked, Parked), parked


@pytest.fixture
def dry(store: Store) -> Store:
    """A batch of 1 USD, of which 0.6 are spent and 0.1 held, and three runs that wait for 0.5 each."""
    open_batch(store, usd=NANO)
    submit_run(store, "spender", batch="b1")
    spend(store, "spender", usd=600_000_000, escrow=100_000_000)
    for number in range(3):
        submit_run(store, f"poor{number}", batch="b1")
        park(store, f"poor{number}", usd=500_000_000)
    return store


# ── show ─────────────────────────────────────────────────────────────────────────────────────────────


def test_show_is_a_tree_of_all_scopes_with_their_money(dry: Store) -> None:
    typed("set", "tenant:acme@day", "--max-usd", "5")
    typed("set", "tenant:other", "--max-tokens", "70", "--on-exhausted", "stop")
    typed("set", "key:k1", "--max-usd", "3")
    lines = typed("show").stdout.splitlines()
    assert [found[0] for line in lines if (found := re.match(r" *\S+", line))] == [
        "scope",
        "global",
        "  key:k1",
        "  tenant:acme",
        "    @day",
        "    batch:b1",
        "  tenant:other",
    ]
    assert lines[0].split() == (
        [
            "scope",
            "limit",
            "spent",
            "reserved",
            "held",
            "left",
            "forfeited",
            "overage",
            "tokens",
            "of",
            "parked",
        ]
    )
    assert lines[5].split() == (
        [
            "batch:b1",
            "1.000000",
            "0.600000",
            "0.000000",
            "0.100000",
            "0.300000",
            "0.000000",
            "0.000000",
            "9",
            "3",
        ]
    )
    assert lines[6].split()[-3:] == ["0", "70", "on_exhausted=stop"]


def test_show_as_json_nests_and_is_exact(dry: Store) -> None:
    typed("charge", "batch:b1", "--usd", "0.000000001", "--reason", "x")
    root = document("show")
    [tenant] = root["children"]
    [batch] = tenant["children"]
    assert (root["scope"], tenant["scope"], batch["scope"]) == ("global", "tenant:acme", "batch:b1")
    assert batch["usd"] == {
        "limit": "1",
        "spent": "0.600000001",
        "reserved": "0",
        "held": "0.1",
        "left": "0.299999999",
        "forfeited": "0",
        "overage": "0",
    }
    assert batch["tokens"] == {"limit": None, "spent": 9, "reserved": 0, "held": 0, "left": None}
    assert (batch["parked"], batch["frozen"], batch["on_exhausted"]) == (3, False, None)


def test_runs_are_shown_when_they_are_asked_for(dry: Store) -> None:
    assert "run:" not in typed("show", "batch:b1").stdout
    shown = document("show", "batch:b1", "--runs")
    assert [run["scope"] for run in shown["children"]] == [
        "run:spender",
        "run:poor0",
        "run:poor1",
        "run:poor2",
    ]
    assert shown["children"][0]["usd"]["spent"] == "0.6"
    assert [batch["scope"] for batch in document("show", "tenant:acme")["children"]] == ["batch:b1"]


def test_a_window_shows_the_day_that_runs_now_with_the_limit_of_each(store: Store) -> None:
    typed("set", "tenant:acme@day", "--max-usd", "5", "--max-tokens", "100")
    submit_run(store)
    spend(store, "r1", usd=NANO)
    window = document("show", "tenant:acme@day")
    assert (window["usd"]["limit"], window["usd"]["spent"], window["usd"]["left"]) == ("5", "1", "4")
    assert window["tokens"]["left"] == 91
    assert len(window["period"]) == len("2026-11-29")
    assert document("show", "tenant:acme")["windows"] == [window]
    assert document("show", f"tenant:acme@day:{window['period']}") == window
    assert document("show", "tenant:acme@day:2001-01-01")["usd"]["spent"] == "0"


def test_show_of_what_nobody_has_used_says_so_with_the_nearest(dry: Store) -> None:
    shown = typed("show", "tenant:acmee")
    assert "nothing is limited or booked in tenant:acmee yet (did you mean 'tenant:acme'?)" in shown.stderr
    assert "nothing" not in typed("show").stderr
    assert "did you mean" not in typed("show", "tenant:day").stderr  # that it is a tenant is no resemblance


# ── set, topup ───────────────────────────────────────────────────────────────────────────────────────


def test_set_limits_and_keeps_what_is_not_named(store: Store) -> None:
    typed("set", "tenant:acme", "--max-usd", "2.5", "--max-tokens", "1000", "--on-exhausted", "winddown")
    typed("set", "tenant:acme", "--max-usd", "none")
    account = store.ledger.account("tenant:acme")
    assert (account.limit_nano, account.tokens_limit) == (None, 1000)
    assert account.words == {"winddown"}
    typed("set", "tenant:acme", "--on-exhausted", "run")
    assert store.ledger.account("tenant:acme").words == frozenset()


def test_a_topup_says_who_goes_on(dry: Store) -> None:
    said = typed("topup", "batch:b1", "--usd", "+0.7")
    assert "batch:b1: limit +0.700000 USD" in said.stderr
    assert "3 runs waited for its money, 1 still do" in said.stderr
    assert [state_of(dry, f"poor{number}") for number in range(3)] == ["queued", "queued", "parked"]
    after = document("topup", "batch:b1", "--usd", "1")
    assert (after["done"], after["parked_before"], after["parked_after"]) == (True, 1, 0)
    assert after["account"]["usd"]["limit"] == "2.7"


def test_an_operation_that_is_typed_again_is_done_once(store: Store) -> None:
    typed("set", "global", "--max-usd", "1")
    typed("topup", "global", "--usd", "0.5", "--id", "july")
    again = typed("topup", "global", "--usd", "0.5", "--id", "july")
    assert "operation july was done before: nothing was changed" in again.stderr
    others = (["topup", "global", "--usd", "0.6"], ["freeze", "global"], ["set", "global", "--max-usd", "0"])
    for verb in (*others, ["charge", "global", "--usd", "1", "--reason", "x"]):
        refused = typed(*verb, "--id", "july", code=2)  # or a freeze would not freeze
        assert "given to another command before: topup global" in refused.stderr
    account = store.ledger.account("global")
    assert (account.limit_nano, account.words) == (1_500_000_000, frozenset())
    assert document("topup", "global", "--usd", "0.5", "--id", "july")["done"] is False


def test_a_limit_below_what_is_spent_is_set_and_said(dry: Store) -> None:
    said = typed("topup", "batch:b1", "--usd", "-0.5")
    assert "more is taken than its limit, by 0.200000 USD: it reserves nothing" in said.stderr
    said = typed("set", "tenant:acme", "--max-tokens", "4")
    assert "more is taken than its limit, by 5 tokens" in said.stderr


def test_who_why_and_what_are_in_the_log(store: Store) -> None:
    typed("set", "global", "--max-usd", "1", "--by", "mira", "--reason", "July – the third")
    typed("freeze", "global")
    first, second = store.journal.read(0)
    assert (first.operation, first.actor, first.reason) == ("limit", "mira", "July – the third")
    assert first.words == "ul - 1000000000"
    assert second.operation == "freeze"
    assert "@" in second.actor


def test_a_limit_of_a_model_is_for_runs_from_now_on(store: Store) -> None:
    said = typed("set", "model:openai:gpt-5-mini", "--max-usd", "1")
    assert "runs that are submitted from now on are in it" in said.stderr
    assert store.ledger.limited(["model:openai:gpt-5-mini", "model:x"]) == ["model:openai:gpt-5-mini"]


# ── freeze, winddown, charge, adjust ─────────────────────────────────────────────────────────────────


def test_what_is_frozen_reserves_nothing_until_it_goes_on(store: Store) -> None:
    submit_run(store)
    assert document("freeze", "tenant:acme")["account"]["frozen"] is True
    park(store, "r1", usd=1)
    said = typed("unfreeze", "tenant:acme")
    assert "1 run waited for its money, 0 still do" in said.stderr
    assert state_of(store) == "queued"


def test_winddown_lets_all_make_their_closing_turns_also_those_in_the_windows(dry: Store) -> None:
    typed("set", "batch:b1@day", "--max-usd", "1", "--reason", "x")
    typed("topup", "batch:b1", "--usd", "99")
    submit_run(dry, "early", batch="b1")
    spend(dry, "early", usd=NANO)
    submit_run(dry, "late", batch="b1")
    park(dry, "late", usd=NANO // 5)
    assert dry.ledger.parked("batch:b1@day")
    waiting = dry.scopes.parked("batch:b1")
    said = typed("winddown", "batch:b1", "--id", "w")
    assert f"{waiting} run" in said.stderr
    assert dry.scopes.parked("batch:b1") == 0
    claim = claim_run(dry, "late")
    assert claim.wind == ("usd", "batch:b1@day")
    assert "was done before" in typed("winddown", "batch:b1", "--id", "w").stderr


def test_a_charge_and_a_correction_are_booked_in_all_scopes_around(store: Store) -> None:
    open_batch(store)
    typed("charge", "batch:b1", "--usd", "2", "--tokens", "30", "--reason", "by hand")
    said = typed("adjust", "tenant:acme", "--usd", "-0.5", "--tokens", "-1", "--reason", "invoice 7")
    assert "spent -0.500000 USD, -1 tokens" in said.stderr
    spent = {
        scope: (store.ledger.account(scope).spent_nano, store.ledger.account(scope).tokens_spent)
        for scope in ("global", "tenant:acme", "batch:b1")
    }
    assert spent == {
        "global": (1_500_000_000, 29),
        "tenant:acme": (1_500_000_000, 29),
        "batch:b1": (2_000_000_000, 30),
    }
    assert store.audit.verify().agrees


# ── refused ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "args, sentence",
    [
        (["set", "tennant:acme", "--max-usd", "1"], "(did you mean 'tenant:acme'?)"),
        (["show", "batch:b11"], "there is no batch 'b11' (did you mean 'b1'?)"),
        (["topup", "batch:b2@day", "--usd", "1"], "there is no batch 'b2'"),
        (["show", "run:nobody"], "there is no run 'nobody'"),
        (["set", "global"], "there is nothing to set"),
        (["set", "global", "--max-usd", "-1"], "-1 USD is not an amount to spend"),
        (["set", "global", "--max-usd", "1e-10"], "finer than a nano-USD"),
        (["set", "global", "--max-usd", "9007200"], "more than the ledger can count exactly"),
        (["set", "global", "--max-tokens", "-1"], "-1 tokens cannot be counted"),
        (["set", "global", "--max-tokens", "many"], "'many' is not a whole number of tokens"),
        (["set", "run:spender", "--max-usd", "0"], "a run's limit must be more than 0"),
        (["set", "run:spender", "--on-exhausted", "park"], "always stops"),
        (["topup", "global", "--usd", "1"], "global has no limit in USD to top up"),
        (["topup", "batch:b1", "--usd", "-2"], "its limit is 1 USD and cannot be lowered by more than that"),
        (["topup", "batch:b1", "--usd", "9007199"], "it would be too large to count"),
        (["topup", "batch:b1"], "that would change nothing"),
        (["topup", "batch:b1", "--usd", "1", "--id", "a b"], "cannot be the name of an operation"),
        (["topup", "batch:b1", "--usd", "1", "--id", ""], "'' cannot be the name of an operation"),
        (["freeze", "tenant:acme@day"], "tenant:acme@day is a window"),
        (["charge", "tenant:acme@day", "--usd", "1", "--reason", "x"], "tenant:acme@day is a window"),
        (["charge", "tenant:acme", "--usd", "1"], "missing option '--reason'"),
        (["charge", "tenant:acme", "--usd", "-1", "--reason", "x"], "-1 USD is not an amount to spend"),
        (["adjust", "tenant:acme", "--usd", "-99", "--reason", "x"], "global has not spent that much"),
        (["adjust", "tenant:acme", "--reason", "x"], "that would change nothing"),
        (["freez", "global"], "freez"),
    ],
)
def test_what_cannot_be_is_one_sentence_and_changes_nothing(
    dry: Store, args: list[str], sentence: str
) -> None:
    before = dry.journal.last()
    refused = typed(*args, code=2)
    assert sentence in refused.stderr
    assert refused.stderr.startswith("error: ")
    assert refused.stdout == ""
    assert dry.journal.last() == before


@pytest.mark.parametrize("args", [["budget", "show"], ["budget", "freeze", "global"], ["ledger", "verify"]])
def test_without_a_server_the_code_is_7(
    store: Store, monkeypatch: pytest.MonkeyPatch, args: list[str]
) -> None:
    monkeypatch.setenv("AGENTQ_REDIS_URL", "redis://localhost:1/0")
    refused = invoke(*args)
    assert (refused.exit_code, refused.stdout) == (7, "")
    assert "Redis cannot be reached" in refused.stderr
