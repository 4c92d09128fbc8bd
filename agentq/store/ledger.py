"""The ledger: money and tokens set aside before a call, in every scope or in none."""

from __future__ import annotations

from typing import Literal

import redis

from agentq.core.records import Account, Denied, Granted, Lease
from agentq.store.keys import Keys
from agentq.store.scripts import Scripts, unexpected

Keep = Literal["="]
KEEP: Keep = "="
Refusal = Literal["STALE", "CLOSED"]
"""STALE: the lease is gone. CLOSED: this very request was reserved and closed before. Neither may be sent."""

_FIELDS = {
    "limit_nano": "ul",
    "spent_nano": "us",
    "reserved_nano": "ur",
    "escrowed_nano": "ue",
    "forfeited_nano": "uf",
    "overage_nano": "uo",
    "tokens_limit": "tl",
    "tokens_spent": "ts",
    "tokens_reserved": "tr",
    "tokens_escrowed": "te",
}


class Ledger:
    """Reservations, escrows and accounts of one namespace."""

    def __init__(self, client: redis.Redis, keys: Keys, scripts: Scripts) -> None:
        self._client = client
        self._keys = keys
        self._scripts = scripts

    def reservation(self, lease: Lease, n: int) -> str:
        """What the scripts call the reservation of a claim's n-th request."""
        return f"{lease.fence}:{n}"

    def reserve(
        self, lease: Lease, n: int, *, usd: int, tokens: int, escrow_usd: int, escrow_tokens: int
    ) -> Granted | Denied | Refusal:
        """Set one request's worst case aside and set the run's escrow, in every scope of the run or in none.

        Args:
            n: the how-many-th request of this claim, from 1: the reservation's own number.
            usd: nano-USD; escrow_usd likewise.
            tokens: input and output together; escrow_tokens likewise.
        """
        reply = self._scripts.call(
            "budget_reserve", lease.run_id, lease.fence, n, usd, tokens, escrow_usd, escrow_tokens
        )
        match reply:
            case ["OK", reservation]:
                return Granted(reservation, usd, tokens)
            case ["DENIED", scope, unit, kind, admitted]:
                return Denied(scope, unit, kind, admitted=admitted == "1")
            case ["STALE"]:
                return "STALE"
            case ["CLOSED"]:
                return "CLOSED"
            case _:
                raise unexpected("budget_reserve", reply)

    def convert(self, lease: Lease, n: int) -> Granted | Refusal | None:
        """Make the run's escrow the reservation of its closing turn; None when it has no escrow left."""
        reply = self._scripts.call("budget_convert", lease.run_id, lease.fence, n)
        match reply:
            case ["OK", reservation, usd, tokens]:
                return Granted(reservation, int(usd), int(tokens))
            case ["NONE"]:
                return None
            case ["STALE"]:
                return "STALE"
            case ["CLOSED"]:
                return "CLOSED"
            case _:
                raise unexpected("budget_convert", reply)

    def set_limit(
        self, scope: str, *, usd: int | Keep | None = KEEP, tokens: int | Keep | None = KEEP
    ) -> None:
        """Limit a scope; None takes that limit away, one that is left out stays as it is."""
        values: list[int | str] = ["" if limit is None else limit for limit in (usd, tokens)]
        reply = self._scripts.call("scope_limit", scope, *values)
        if reply != ["OK"]:
            raise unexpected("scope_limit", reply)

    def account(self, scope: str) -> Account:
        """A scope as it stands; zeros for one that was never used."""
        values = self._client.hmget(self._keys.scope(scope), list(_FIELDS.values()))
        fields: dict[str, int | None] = {}
        for name, value in zip(_FIELDS, values, strict=True):
            limit = name in {"limit_nano", "tokens_limit"}
            fields[name] = int(value) if value is not None else (None if limit else 0)
        return Account(scope=scope, **fields)  # type: ignore[arg-type]

    def open_reservations(self, run_id: str) -> dict[str, tuple[int, int]]:
        """What a run holds: reservation, or `escrow`, to (nano-USD, tokens)."""
        held: dict[str, tuple[int, int]] = {}
        for name, text in self._client.hgetall(self._keys.run(run_id, "open")).items():
            usd, _, tokens = str(text).partition(" ")
            held[str(name)] = (int(usd), int(tokens))
        return held
