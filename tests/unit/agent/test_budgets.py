"""Budgets are checked before the money is spent."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from decimal import Decimal

import pytest

from agentq.agent import Budgets, Spend, StopReason
from agentq.agent.budgets import Need, Rung, first_fitting, refused_by
from agentq.core.money import to_usd


def test_the_first_budget_that_is_used_up_names_the_stop() -> None:
    """In the order steps, tokens, cost, time."""
    budgets = Budgets(max_steps=1, max_tokens=10, max_usd="0.5", max_seconds=2.0)
    assert budgets.exceeded_by(Spend()) is None
    assert budgets.exceeded_by(Spend(1, 10, Decimal("0.5"), 2.0)) is StopReason.STEP_BUDGET
    assert budgets.exceeded_by(Spend(0, 10, Decimal("0.5"), 2.0)) is StopReason.TOKEN_BUDGET
    assert budgets.exceeded_by(Spend(0, 9, Decimal("0.5"), 2.0)) is StopReason.COST_BUDGET
    assert budgets.exceeded_by(Spend(0, 9, Decimal("0.49"), 2.0)) is StopReason.TIME_BUDGET


def test_none_is_no_limit() -> None:
    """Nothing stops such a run but its model."""
    budgets = Budgets(None, None, None, None)
    spend = Spend(10**6, 10**9, Decimal(10**6), 10.0**6)
    assert budgets.exceeded_by(spend) is None
    assert refused_by(budgets, spend, Need(10**9, 10**9, 10**9, 10**9)) is None


def test_a_need_counts_the_call_and_what_must_stay_for_the_closing_turn() -> None:
    """To the last token and the last nano-USD."""
    budgets = Budgets(max_tokens=100, max_usd="0.000000100")
    spend = Spend(tokens=40, usd=Decimal("0.00000004"))
    assert refused_by(budgets, spend, Need(30, 30, 30, 30)) is None
    assert refused_by(budgets, spend, Need(30, 31, 30, 30)) is StopReason.TOKEN_BUDGET
    assert refused_by(budgets, spend, Need(30, 30, 31, 30)) is StopReason.COST_BUDGET


def test_what_somebody_has_named_goes_before_a_default_whatever_it_is() -> None:
    """A limit that was named as what it would have been anyway, and none at all, are named too."""
    defaults = Budgets(max_steps=3, max_tokens=50, max_usd="0.1", max_seconds=9.0)
    assert Budgets().over(defaults) == defaults
    assert Budgets(12, None).over(defaults) == Budgets(12, None, "0.1", 9.0)
    assert Budgets(max_usd=None).over(defaults) == Budgets(3, 50, None, 9.0)
    kept = Budgets.from_dict(json.loads(json.dumps(Budgets(max_steps=5).as_dict())))
    assert kept.over(defaults) == Budgets(max_steps=5), "what was written down is decided"


@pytest.mark.parametrize("again", [copy, lambda budgets: pickle.loads(pickle.dumps(budgets)), replace])
def test_a_copy_has_the_same_names(again: Callable[[Budgets], Budgets]) -> None:
    budgets = Budgets(max_steps=5)
    assert again(budgets) == budgets
    assert repr(again(budgets)) == repr(budgets)
    if again is not replace:
        assert again(budgets).named == {"max_steps"}


@pytest.mark.parametrize(
    "tokens, nano, fitting",
    [
        (None, None, 40),
        (80, 800, 40),
        (79, 800, 20),
        (80, 799, 20),
        (40, 399, 10),
        (20, 200, 10),
        (19, 200, StopReason.TOKEN_BUDGET),
        (20, 199, StopReason.COST_BUDGET),  # the larger ones are refused in tokens: the smallest counts
        (19, 199, StopReason.TOKEN_BUDGET),
    ],
)
def test_the_largest_rung_that_fits_both_budgets(
    tokens: int | None, nano: int | None, fitting: int | StopReason
) -> None:
    """Else the budget in which not even the smallest does, tokens before cost."""
    rungs = [Rung(cap, Need(10 * cap, cap, 10 * cap, cap)) for cap in (40, 20, 10)]
    spend = Spend(tokens=100, usd=Decimal("0.000001"))
    budgets = Budgets(
        max_tokens=None if tokens is None else 100 + tokens,
        max_usd=None if nano is None else to_usd(1000 + nano),
    )
    found = first_fitting(budgets, spend, rungs)
    assert (found.output_tokens if isinstance(found, Rung) else found) == fitting


def test_a_call_has_at_least_one_size() -> None:
    """Nothing that fits must not be taken for a fit."""
    with pytest.raises(ValueError, match="no rung"):
        first_fitting(Budgets(), Spend(), [])


@pytest.mark.parametrize("name", ["max_steps", "max_tokens", "max_seconds", "max_usd"])
@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_that_leaves_no_room_is_refused_in_words(name: str, limit: int) -> None:
    """It would stop every run at once."""
    with pytest.raises(ValueError, match=r"0 or more|more than 0"):
        Budgets(**{name: limit})


def test_tokens_that_the_ledger_cannot_count_are_refused_in_words() -> None:
    """Not by the script that creates the run, when others of its batch are written already."""
    assert Budgets(max_tokens=2**53 - 1).max_tokens == 2**53 - 1
    with pytest.raises(ValueError, match="cannot be counted"):
        Budgets(max_tokens=2**53)
    with pytest.raises(TypeError, match="not a whole number"):
        Budgets(max_tokens=1e5)  # type: ignore[arg-type]


def test_money_is_exact_or_refused() -> None:
    """Text, whole numbers and Decimal are kept as Decimal; a float and less than a nano-USD are not."""
    assert Budgets(max_usd="0.10").max_usd == Budgets(max_usd=Decimal("0.1")).max_usd == Decimal("0.1")
    assert Budgets(max_usd=2).max_usd == Decimal(2)
    with pytest.raises(TypeError, match="float"):
        Budgets(max_usd=0.1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="finer than a nano-USD"):
        Budgets(max_usd="0.0000000001")


def test_budgets_and_spend_survive_json() -> None:
    """Money as text, without rounding."""
    for budgets in (Budgets(), Budgets(3, None, "0.123456789", 1.5)):
        assert Budgets.from_dict(json.loads(json.dumps(budgets.as_dict()))) == budgets
    spend = Spend(1, 2, Decimal("0.000000001"), 3.5, 4)
    assert Spend.from_dict(json.loads(json.dumps(spend.as_dict()))) == spend
