"""The ledger: money and tokens set aside before a call, in every scope or in none."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import redis

from agentq.core.errors import ConflictError, UsageError
from agentq.core.money import to_usd
from agentq.core.records import (
    Account,
    Actor,
    Denied,
    Granted,
    Lease,
    Pace,
    Paced,
    Parked,
    Recovering,
    Settlement,
    Size,
)
from agentq.store.keys import Keys
from agentq.store.operations import Loss, Operations, Reserved
from agentq.store.scripts import Arg, Scripts, unexpected

log = logging.getLogger("agentq.ledger")

Keep = Literal["="]
KEEP: Keep = "="
Refusal = Literal["STALE", "CLOSED"]
"""STALE: the lease is gone. CLOSED: this very request was reserved and closed before. Neither may be sent."""

PARK_MS = 7 * 86_400_000
RECOVER_MS = 20_000
"""How long nothing is reserved after a rollback: a lease and a heartbeat; then all have spoken."""
REASSERTED = 500
"""Lost reservations that are booked again in one round trip."""
SWEEP = 64
"""Parked runs that one script of a sweep looks at."""
LOG_KEPT = 100_000
"""Entries of the log that are kept; older ones are in the checkpoint."""
FOLD = 100
"""Entries that one script folds."""

_NUMBERS = {
    "limit_nano": "ul",
    "spent_nano": "us",
    "reserved_nano": "ur",
    "escrowed_nano": "ue",
    "idle_nano": "ui",
    "forfeited_nano": "uf",
    "overage_nano": "uo",
    "tokens_limit": "tl",
    "tokens_spent": "ts",
    "tokens_reserved": "tr",
    "tokens_escrowed": "te",
    "tokens_idle": "ti",
}
_LIMITS = ("limit_nano", "tokens_limit")


class Ledger:
    """Reservations, escrows and accounts of one namespace.

    Args:
        client: the server.
        keys: the namespace.
        scripts: its scripts.
        recover_ms: how long nothing is reserved after a rollback of the server was noticed here.
    """

    def __init__(
        self, client: redis.Redis, keys: Keys, scripts: Scripts, *, recover_ms: int = RECOVER_MS
    ) -> None:
        self._client = client
        self._keys = keys
        self._scripts = scripts
        self._recover_ms = recover_ms
        self._reporting = threading.Lock()
        self.operations = Operations()

    # ── what workers do ──────────────────────────────────────────────────────────────────────────

    def reservation(self, lease: Lease, n: int) -> str:
        """What the scripts call the reservation of a claim's n-th request."""
        return f"{lease.fence}:{n}"

    def reserve(
        self,
        lease: Lease,
        n: int,
        sizes: Sequence[Size],
        *,
        smaller: Callable[[], Sequence[Size]] | None = None,
        policy: str = "park",
        catalogue: str = "",
        park_ms: int = PARK_MS,
        fields: Mapping[str, str] | None = None,
        pace: Pace | None = None,
    ) -> Granted | Denied | Parked | Recovering | Paced | Refusal:
        """Set one request's worst case aside and set the run's escrow, in every scope of the run or in none.

        Args:
            lease: the step's.
            n: the how-many-th request of this claim, from 1: the reservation's own number.
            sizes: what the request may be cut to, the largest first. A smaller one is granted only where
                there is no money for a larger one.
            smaller: the rest of them, computed only where there is no money for these.
            policy: what a dry scope means that says nothing: park, stop or winddown. Of a closing turn close
                (park only for calls in flight) or deny (never park), whatever the scope says.
            catalogue: the hash of the prices that the worst case was computed with.
            park_ms: how long the run may be parked, all its times together.
            fields: written into the run's hash when it is parked.
            pace: the rate limit that the call shares: asked once there is money, before any is set aside.
        """
        process, acknowledged = self.operations.current()
        flat: list[Arg] = []
        for size in sizes:
            flat += [size.output_tokens, size.usd, size.tokens, size.escrow_usd, size.escrow_tokens]
        reply = self._scripts.call(
            "budget_reserve",
            lease.run_id,
            lease.fence,
            n,
            process,
            acknowledged,
            policy,
            catalogue,
            park_ms,
            *_counted(fields),
            len(flat),
            *flat,
            int(smaller is not None),
            *_paced(pace),
        )
        match reply:
            case ["SMALLER"] if smaller is not None:
                return self.reserve(
                    lease,
                    n,
                    [*sizes, *smaller()],
                    policy=policy,
                    catalogue=catalogue,
                    park_ms=park_ms,
                    fields=fields,
                    pace=pace,
                )
            case ["OK", reservation, place, number, taken]:
                size = sizes[int(place) - 1]
                self._acknowledge(int(number), lease, reservation, size.usd, size.tokens)
                return Granted(reservation, size.usd, size.tokens, size.output_tokens, *_lane_of(pace, taken))
            case ["DENIED", scope, unit, kind, admitted]:
                return Denied(scope, unit, kind, admitted=admitted == "1")
            case _:
                return self._turned_away("budget_reserve", reply, pace)

    def convert(
        self,
        lease: Lease,
        n: int,
        *,
        park_ms: int = PARK_MS,
        fields: Mapping[str, str] | None = None,
        pace: Pace | None = None,
    ) -> Granted | Parked | Recovering | Paced | Refusal | None:
        """Make the run's escrow the reservation of its closing turn; None when it has no escrow left."""
        process, acknowledged = self.operations.current()
        reply = self._scripts.call(
            "budget_convert",
            lease.run_id,
            lease.fence,
            n,
            process,
            acknowledged,
            park_ms,
            *_counted(fields),
            *_paced(pace),
        )
        match reply:
            case ["OK", reservation, usd, tokens, output_tokens, number, taken]:
                self._acknowledge(int(number), lease, reservation, int(usd), int(tokens))
                return Granted(reservation, int(usd), int(tokens), int(output_tokens), *_lane_of(pace, taken))
            case ["NONE"]:
                return None
            case _:
                return self._turned_away("budget_convert", reply, pace)

    def _turned_away(
        self, name: str, reply: list[object], pace: Pace | None
    ) -> Parked | Recovering | Paced | Refusal:
        match reply:
            case ["PACED", wait_ms, str(why)] if pace is not None:
                return Paced(pace.lane, int(str(wait_ms)), why)
            case ["PARKED", str(scope), str(unit), str(kind)]:
                return Parked(scope, unit, kind)
            case ["RECOVERING", until]:
                return Recovering(int(str(until)))
            case ["ROLLBACK", known]:
                return Recovering(self.rolled_back(int(str(known))))
            case ["NO_LEDGER"]:
                log.critical("no_ledger namespace=%s", self._keys.namespace)
                return Recovering(0)
            case ["STALE"]:
                return "STALE"
            case ["CLOSED"]:
                return "CLOSED"
            case _:
                raise unexpected(name, reply)

    def _acknowledge(self, number: int, lease: Lease, reservation: str, usd: int, tokens: int) -> None:
        self.operations.acknowledge(number, lease, reservation, usd, tokens)
        self.report()

    def closed(self, lease: Lease, settlement: Settlement, *, doubtful: bool) -> None:
        """The server was told how this reservation closes; where it had lost it, that is booked again.

        Args:
            lease: the step's.
            settlement: how it closes.
            doubtful: the server has answered that it does not know this lease (any more).
        """
        self.operations.closed(lease, settlement)
        if doubtful:
            self.check()
        self.report()

    def open_reservations(self, run_id: str) -> dict[str, tuple[int, int]]:
        """What a run holds: reservation, or `escrow`, to (nano-USD, tokens)."""
        held: dict[str, tuple[int, int]] = {}
        for name, text in self._client.hgetall(self._keys.run(run_id, "open")).items():
            if name != "n":
                usd, tokens = str(text).split()[:2]
                held[str(name)] = (int(usd), int(tokens))
        return held

    # ── a server that has lost writes ────────────────────────────────────────────────────────────

    def rolled_back(self, known: int) -> int:
        """The server knows no reservation of this process above `known`. Answers until when to wait (ms)."""
        self.operations.rolled_back(known)
        return self.report()

    def check(self) -> None:
        """Compare what this process knows with what the server knows, and report a rollback."""
        process, acknowledged = self.operations.current()
        known = int(str(self._client.hget(self._keys.ledger, f"op:{process}") or 0))
        if known < acknowledged:
            self.rolled_back(known)

    def report(self) -> int:
        """Write down what a rollback has taken from this process, and book it again: all that is known of it.

        What is under way is booked in full, until its bill is known. Where this is interrupted the next call
        goes on. Answers until when the ledger recovers (ms), 0 when that was not asked.
        """
        if not self.operations.has_news:
            return 0
        with self._reporting:
            loss = self.operations.loss()
            until_ms = 0 if loss is None else self._report(loss)
            facts = self.operations.unbooked()
            for start in range(0, len(facts), REASSERTED):
                self._book_again(facts[start : start + REASSERTED])
        return until_ms

    def _report(self, loss: Loss) -> int:
        usd = sum(reserved.usd for reserved in loss.reserved)
        tokens = sum(reserved.tokens for reserved in loss.reserved)
        log.critical(
            "ledger_rolled_back process=%s known=%d acknowledged=%d seconds=%.3f reservations=%d nano_usd=%d",
            loss.process,
            loss.known,
            loss.acknowledged,
            loss.seconds,
            len(loss.reserved),
            usd,
        )
        reply = self._scripts.call(
            "ledger_incident",
            loss.process,
            loss.known,
            loss.acknowledged,
            self._recover_ms,
            round(loss.seconds * 1000),
            len(loss.reserved),
            usd,
            tokens,
            loss.incident,
        )
        match reply:
            case ["OK", until]:
                self.operations.reported(loss)
                return int(until)
            case _:
                raise unexpected("ledger_incident", reply)

    def _book_again(self, facts: list[Reserved]) -> None:
        calls = [
            (fact.run_id, fact.reservation, fact.how, fact.usd, fact.tokens, fact.scopes) for fact in facts
        ]
        there = []
        for fact, reply in zip(facts, self._scripts.call_many("ledger_reassert", calls), strict=True):
            if reply == ["OPEN"]:
                there.append(fact)
            elif reply not in (["OK"], ["KNOWN"]):
                raise unexpected("ledger_reassert", reply)
        self.operations.found(there)
        self.operations.booked(facts)

    # ── runs that wait for money ─────────────────────────────────────────────────────────────────

    def parked(self, scope: str) -> list[str]:
        """The runs that wait for money of this scope or window (`tenant:acme@day`), the longest first."""
        return [str(run) for run in self._client.zrange(self._keys.parked(scope), 0, -1)]

    def sweep(self, scope: str) -> tuple[int, bool]:
        """Look at the next parked runs of a scope; how many go on, and whether the sweep is at its end."""
        reply = self._scripts.call("budget_wake", scope, SWEEP)
        match reply:
            case ["OK", woken, over]:
                return int(woken), int(over) == 1
            case ["EARLY"]:
                return 0, True
            case _:
                raise unexpected("budget_wake", reply)

    def fold(self, *, kept: int = LOG_KEPT, at_most: int = FOLD) -> int:
        """Add the oldest entries of the log into the checkpoint, and trim them: how many.

        Nothing is folded while somebody verifies, nor what an exporter has yet to read.
        """
        reply = self._scripts.call("ledger_fold", kept, at_most)
        match reply:
            case ["OK", folded]:
                return int(folded)
            case _:
                raise unexpected("ledger_fold", reply)

    # ── what people do ───────────────────────────────────────────────────────────────────────────

    def set_limit(
        self,
        scope: str,
        *,
        usd: int | Keep | None = KEEP,
        tokens: int | Keep | None = KEEP,
        on_exhausted: str | None = KEEP,
        actor: Actor | None = None,
    ) -> None:
        """Limit a scope, or its windows (`tenant:acme@day`).

        Args:
            scope: whose limits.
            usd: nano-USD; None takes that limit away, one that is left out stays as it is. Likewise `tokens`.
            on_exhausted: park, stop or winddown; None leaves it to each run.
            actor: who sets it. Without one it is a default: it never goes over what an operator has set.
        """
        values: list[Arg] = ["" if value is None else value for value in (usd, tokens, on_exhausted)]
        who = actor or Actor("", "settings")
        reply = self._command(
            "budget_set", who.operation, who.by, who.reason, scope, *values, int(actor is None)
        )
        if reply != ["OK"]:
            raise unexpected("budget_set", reply)

    def topup(self, scope: str, *, actor: Actor, usd: int = 0, tokens: int = 0) -> None:
        """Raise the limits of a scope by so much, or lower them. Who waited for that money goes on.

        Raises:
            UsageError: when the scope has no such limit, or it would be below zero or too large to count.
        """
        reply = self._command("budget_topup", *_by(actor), scope, usd, tokens)
        match reply:
            case ["OK", _, _]:
                return
            case ["NO_LIMIT", unit]:
                name = "USD" if unit == "usd" else unit
                raise UsageError(
                    f"{scope} has no limit in {name} to top up", hint=f"agentq budget set {scope} sets one"
                )
            case ["BELOW_ZERO", unit, limit]:
                raise UsageError(
                    f"{scope}: its limit is {_said(unit, limit)} and cannot be lowered by more than that"
                )
            case ["TOO_MUCH", unit, limit]:
                raise UsageError(
                    f"{scope}: its limit is {_said(unit, limit)}; with that it would be too large to count"
                )
            case _:
                raise unexpected("budget_topup", reply)

    def freeze(self, scope: str, *, actor: Actor, frozen: bool = True) -> None:
        """Reserve nothing in a scope any more, or let it go on. What is sent already is still booked."""
        reply = self._command("budget_freeze", *_by(actor), scope, int(frozen))
        if reply != ["OK"]:
            raise unexpected("budget_freeze", reply)

    def book(
        self, scope: str, kind: Literal["charge", "adjust"], *, actor: Actor, usd: int = 0, tokens: int = 0
    ) -> tuple[int, int]:
        """Book by hand in a scope and those around it; answers what the scope has spent then.

        Raises:
            UsageError: when there is no such run or batch, or more would be taken back than was spent.
        """
        reply = self._command("budget_book", *_by(actor), scope, kind, usd, tokens)
        match reply:
            case ["OK", spent_usd, spent_tokens]:
                return int(spent_usd), int(spent_tokens)
            case ["MISSING"]:
                raise UsageError(f"there is no {scope.replace(':', ' ', 1)}")
            case ["BELOW_ZERO", account]:
                raise UsageError(f"{account} has not spent that much: nothing was booked")
            case _:
                raise unexpected("budget_book", reply)

    def winddown(self, scope: str, *, actor: Actor, at_most: int = 100) -> tuple[int, int]:
        """Let runs that are parked in a scope make their closing turns: how many, and how many are left."""
        reply = self._command("budget_winddown", scope, at_most, actor.by, actor.reason, actor.operation)
        match reply:
            case ["OK", wound, left]:
                return int(wound), int(left)
            case _:
                raise unexpected("budget_winddown", reply)

    def _command(self, name: str, *args: Arg) -> list[Any]:
        """The reply to a person's command.

        Raises:
            ConflictError: when its id was another command's.
        """
        reply = self._scripts.call(name, *args)
        if reply[0] == "CONFLICT":
            verb, scope = reply[1].split()[:2]
            raise ConflictError(
                f"this id was given to another command before: {verb} {scope}, or with another amount",
                hint="give it an id of its own",
            )
        return reply

    def was_done(self, operation: str) -> bool:
        """Whether an operation of this id was carried out in the last seven days."""
        return bool(self._client.exists(self._keys.operation(operation)))

    # ── looking ──────────────────────────────────────────────────────────────────────────────────

    def account(self, scope: str) -> Account:
        """A scope as it stands; zeros for one that was never used."""
        return self.accounts([scope])[0]

    def accounts(self, scopes: Sequence[str]) -> list[Account]:
        """Scopes as they stand at one instant."""
        pipeline = self._client.pipeline(transaction=True)
        for scope in scopes:
            pipeline.hmget(self._keys.scope(scope), [*_NUMBERS.values(), "c"])
        return [_account(scope, values) for scope, values in zip(scopes, pipeline.execute(), strict=True)]

    def limited(self, scopes: Sequence[str]) -> list[str]:
        """Of these agents, models and keys, those that have a limit."""
        if not scopes:
            return []
        found = self._client.smismember(self._keys.limited, list(scopes))
        return [scope for scope, is_in in zip(scopes, found, strict=True) if is_in]


def _account(scope: str, values: Sequence[str | None]) -> Account:
    fields: dict[str, int | None] = {}
    for name, value in zip(_NUMBERS, values, strict=False):
        fields[name] = int(value) if value is not None else (None if name in _LIMITS else 0)
    return Account(scope=scope, words=frozenset((values[-1] or "").split()), **fields)  # type: ignore[arg-type]


def _said(unit: str, limit: str) -> str:
    return f"{to_usd(int(limit)):f} USD" if unit == "usd" else f"{limit} {unit}"


def _by(actor: Actor) -> tuple[str, str, str]:
    return actor.operation, actor.by, actor.reason


def _paced(pace: Pace | None) -> list[Arg]:
    return [] if pace is None else [pace.lane, pace.input_tokens]


def _lane_of(pace: Pace | None, taken: str) -> tuple[str, int]:
    return ("", 0) if pace is None else (pace.lane, int(taken))


def _counted(fields: Mapping[str, str] | None) -> list[Arg]:
    flat = [part for item in (fields or {}).items() for part in item]
    return [len(flat), *flat]
