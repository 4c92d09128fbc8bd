"""`agentq limits`: what the fleet has found of its providers' limits."""

from __future__ import annotations

from agentq.cli.limits import _row, _state
from agentq.core.records import LaneRecord

LANE = LaneRecord(
    name="openai:k1:gpt",
    account="openai:k1",
    model="gpt",
    requests_a_minute=588,
    tokens_a_minute=None,
    is_named=False,
    waiting=12,
    wait_ms=0,
    taken=1_000,
    refused=3,
)


def test_a_rate_that_is_not_known_yet_is_a_question_mark():
    assert _row(LANE) == ("openai:k1", "gpt", "588", "?", "12", "3 of 1000", "")


def test_why_a_lane_stands_still_is_said_in_words():
    from dataclasses import replace

    assert _state(replace(LANE, wait_ms=2_500)) == "all wait 2.5 s"
    assert _state(replace(LANE, is_named=True)) == "as its headers say"
    assert _state(replace(LANE, stopped="no money", stopped_ms=0)).endswith("no money")
