"""What a batch of the demo came to, held against what it must come to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentq.core.money import NANO, format_usd
from agentq.core.records import Account

CALL_NANO = NANO * 15 // 10_000
"""A call of the scripted model: 500 tokens in at 1 USD and 100 out at 10 USD a million."""

EXPECTED: dict[str, dict[str, Any]] = {
    "on": {
        "runs": 20,
        "completion_rate": 0.75,
        "steps_p50": 2.0,
        "steps_p95": 3.0,
        "tool_error_rate": 0.091,
        "loop_rate": 0.25,
        "budget_stop_rate": 0.0,
        "recovery_rate": 1.0,
        "mean_usd": "0.003825",
    },
    "off": {
        "runs": 20,
        "completion_rate": 1.0,
        "steps_p50": 2.0,
        "steps_p95": 7.0,
        "tool_error_rate": 0.062,
        "loop_rate": 0.0,
        "budget_stop_rate": 0.0,
        "recovery_rate": 1.0,
        "mean_usd": "0.004950",
    },
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """One configuration: its metrics, its account in the ledger, and its bill by the threads themselves."""

    key: str
    batch: str
    metrics: Mapping[str, Any]
    account: Account
    threads_nano: int
    calls: int

    @property
    def title(self) -> str:
        """How the tables call it."""
        return f"detection {self.key}"

    def problems(self) -> list[str]:
        """Every figure that is not the expected one, a sentence each."""
        wrong = [
            f"{self.title}: {name} is {self.metrics.get(name)}, not {value}"
            for name, value in EXPECTED[self.key].items()
            if self.metrics.get(name) != value
        ]
        account = self.account
        if not account.spent_nano == self.threads_nano == self.calls * CALL_NANO:
            ledger, threads = format_usd(account.spent_nano), format_usd(self.threads_nano)
            cost = format_usd(self.calls * CALL_NANO)
            wrong.append(
                f"{self.title}: {ledger} USD in the ledger, {threads} in the threads, {cost} for the calls"
            )
        if account.reserved_nano or account.escrowed_nano or account.forfeited_nano:
            wrong.append(f"{self.title}: money is still set aside, or was forfeited, after the end")
        return wrong
