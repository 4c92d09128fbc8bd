"""The ledger in plain Python: what every account, reservation and answer must be, without a server.

Money is a pair, nano-USD and tokens. Nothing here is clever: an account is the sum of what its runs hold and
have spent, and whether something fits is one comparison. A window is its list and its age:
`("tenant:acme@day", 1)` is yesterday.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

Pair = tuple[int, int]
Window = tuple[str, int]
Account = str | Window
UNITS = ("usd", "tokens")
SMALLER = {"never", "exhausted", "winddown"}
"""Kinds of denial at which a smaller size is tried."""
NOTHING: Pair = (0, 0)


def plus(*pairs: Pair) -> Pair:
    """Their sum."""
    return sum(pair[0] for pair in pairs), sum(pair[1] for pair in pairs)


def minus(a: Pair, b: Pair) -> Pair:
    """The difference."""
    return a[0] - b[0], a[1] - b[1]


@dataclass
class Held:
    """An amount that is set aside, or a fact, and the windows in which it counts."""

    amount: Pair
    windows: set[Window] = field(default_factory=set)
    over: int = 0


@dataclass(frozen=True)
class Obstacle:
    """Why something does not fit: in which list one waits for it, in which unit, and of what kind."""

    list: str
    unit: str
    kind: str
    account: Account


@dataclass
class Waiting:
    """Why a run is parked."""

    list: str
    unit: str
    kind: str
    needs: tuple[Pair, ...]
    """Of the size that it waits for, and of its smallest."""
    policy: str
    since: int = 0


@dataclass
class Run:
    """What is expected of one run."""

    scopes: tuple[str, ...]
    state: str = "queued"
    deaths: int = 0
    since: int | None = None
    """When it began to wait for money, kept until it has got some."""
    parked: Waiting | None = None
    wind: tuple[str, str] | None = None
    escrow: Held | None = None
    open: dict[str, Held] = field(default_factory=dict)
    forfeits: dict[str, Held] = field(default_factory=dict)
    facts: list[Held] = field(default_factory=list)

    @property
    def is_idle(self) -> bool:
        """Whether its escrow lies there unused."""
        return self.state in {"parked", "waiting"}

    def close(self, name: str, how: str, cost: Pair) -> bool:
        """One reservation is closed: a fact, whoever says so, once."""
        if name in self.open:
            held = self.open.pop(name)
            match how:
                case "settle" | "estimate":
                    self.facts.append(Held(cost, held.windows, max(0, cost[0] - held.amount[0])))
                case "forfeit":
                    self.forfeits[name] = held
                case "restore" if self.escrow is None:
                    self.escrow = held
            return True
        if name in self.forfeits and how != "forfeit":
            held = self.forfeits.pop(name)
            if how in {"settle", "estimate"}:
                self.facts.append(Held(cost, held.windows, max(0, cost[0] - held.amount[0])))
            return True
        return False

    def leave(self, state: str) -> None:
        """It leaves `running`, or ends: nothing stays open."""
        for name in list(self.open):
            self.close(name, "forfeit", NOTHING)
        self.state = state
        if state != "parked":
            self.parked = None
        if state == "ended":
            self.escrow = self.wind = self.since = None


Promise = tuple[Run, Pair]


class LedgerModel:
    """All runs of a namespace, and what people have set and booked."""

    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}
        self.limits: dict[str, tuple[int | None, int | None]] = {}
        """Of scopes, and of their windows (`tenant:acme@day`)."""
        self.words: dict[str, str] = {}
        self.frozen: set[str] = set()
        self.by_hand: list[tuple[Pair, set[Account]]] = []

    # ── accounts ─────────────────────────────────────────────────────────────────────────────────

    def windows(self, scopes: Iterable[str]) -> set[Window]:
        """The windows of these scopes that count and run now."""
        return {(account[0], 0) for account in self.accounts(scopes) if not isinstance(account, str)}

    def accounts(self, scopes: Iterable[str]) -> list[Account]:
        """The scopes, each followed by its windows that run now."""
        found: list[Account] = []
        for scope in scopes:
            found.append(scope)
            for kind in ("day", "month"):
                if self.limits.get(f"{scope}@{kind}", (None, None)) != (None, None):
                    found.append((f"{scope}@{kind}", 0))
        return found

    def total(self, account: Account) -> dict[str, int]:
        """Every field of an account."""
        spent, reserved, escrowed, idle, forfeited, over = NOTHING, NOTHING, NOTHING, NOTHING, 0, 0
        for run in self.runs.values():

            def counts(held: Held, run: Run = run) -> bool:
                return account in run.scopes or account in held.windows

            for fact in filter(counts, run.facts):
                spent, over = plus(spent, fact.amount), over + fact.over
            for held in filter(counts, run.forfeits.values()):
                spent, forfeited = plus(spent, held.amount), forfeited + held.amount[0]
            for held in filter(counts, run.open.values()):
                reserved = plus(reserved, held.amount)
            if run.escrow is not None and counts(run.escrow):
                escrowed = plus(escrowed, run.escrow.amount)
                idle = plus(idle, run.escrow.amount) if run.is_idle else idle
        for amount, accounts in self.by_hand:
            spent = plus(spent, amount) if account in accounts else spent
        return {
            "us": spent[0], "ts": spent[1], "ur": reserved[0], "tr": reserved[1], "ue": escrowed[0],
            "te": escrowed[1], "ui": idle[0], "ti": idle[1], "uf": forfeited, "uo": over,
        }  # fmt: skip

    def limit(self, account: Account) -> tuple[int | None, int | None]:
        """Its limits in nano-USD and tokens."""
        return self.limits.get(account if isinstance(account, str) else account[0], (None, None))

    def turn(self, kind: str) -> None:
        """A day or a month is over."""

        def older(account: Account) -> Account:
            if isinstance(account, str) or not account[0].endswith(kind):
                return account
            return account[0], account[1] + 1

        for run in self.runs.values():
            held = [*run.open.values(), *run.forfeits.values(), *run.facts]
            for one in [*held, *([run.escrow] if run.escrow else [])]:
                one.windows = {window for window in map(older, one.windows) if not isinstance(window, str)}
        self.by_hand = [(amount, {older(a) for a in accounts}) for amount, accounts in self.by_hand]

    # ── what fits ────────────────────────────────────────────────────────────────────────────────

    def blocked(self, run: Run, promised: Sequence[Promise] = ()) -> Obstacle | None:
        """Why a parked run does not fit, nor its smallest size when the one it waits for cannot come."""
        assert run.parked is not None
        found = None
        for need in run.parked.needs:
            found = self.obstacle(run, need, promised)
            if found is None or found.kind not in SMALLER:
                return found
        return found

    def obstacle(self, run: Run, need: Pair, promised: Sequence[Promise] = ()) -> Obstacle | None:
        """The first account into which a need does not fit, if any. `promised`: to others, who go before."""
        for account in self.accounts(run.scopes):
            if account in self.frozen:
                return Obstacle(account if isinstance(account, str) else account[0], "usd", "frozen", account)
        for account in self.accounts(run.scopes):
            name = account if isinstance(account, str) else account[0]
            books, limits = self.total(account), self.limit(account)
            own = self._own(run, account)
            for i in (1, 0):  # tokens are named before money
                limit, letter = limits[i], "ut"[i]
                if limit is None:
                    continue
                spent = books[f"{letter}s"]
                held = books[f"{letter}r"] + books[f"{letter}e"] - own[i]
                taken = sum(
                    promise[i] - self._own(other, account)[i]
                    for other, promise in promised
                    if account in self.accounts(other.scopes)
                )
                if spent + held + taken + need[i] <= limit:
                    continue
                idle = books[f"{letter}i"] - (own[i] if run.is_idle else 0)
                if need[i] > limit:
                    kind = "never"
                elif spent + need[i] > limit:
                    kind = "exhausted"
                else:
                    kind = "winddown" if spent + idle + need[i] > limit else "wait"
                return Obstacle(name, UNITS[i], kind, account)
        return None

    def _own(self, run: Run, account: Account) -> Pair:
        if run.escrow is None or not (account in run.scopes or account in run.escrow.windows):
            return NOTHING
        return run.escrow.amount

    def parks(self, run: Run, found: Obstacle, policy: str) -> bool:
        """Whether a run that is denied like this waits for money."""
        if found.kind == "frozen":
            return True
        if policy == "deny" or found.kind == "never":
            return False
        if found.kind == "wait":
            return True
        if found.list.startswith("run:"):
            return False
        chosen = self.words.get(found.list.partition("@")[0]) or policy
        if found.kind == "winddown":
            return chosen == "park" or run.escrow is None
        return chosen != "stop"

    def queue(self, name: str) -> list[Run]:
        """The runs that wait in a list, the longest first."""
        found = [
            (run.parked.since, run_id, run)
            for run_id, run in self.runs.items()
            if run.parked is not None and run.parked.list == name
        ]
        return [run for _, _, run in sorted(found, key=lambda entry: entry[:2])]

    def in_front(self, run: Run, now: int, aged_ms: int) -> Obstacle | None:
        """Who has waited longer and may not be overtaken."""
        for account in self.accounts(run.scopes):
            name = account if isinstance(account, str) else account[0]
            waiting = [head for head in self.queue(name) if head.parked and head.parked.kind == "wait"]
            for head in waiting[:1]:
                waits = head.parked
                assert waits is not None
                earlier = run.since is None or waits.since < run.since
                if earlier and (run.escrow is None or self.holds_all_up(head, now, aged_ms)):
                    return Obstacle(name, waits.unit, "wait", account)
        return None

    def holds_all_up(self, run: Run, now: int, aged_ms: int) -> bool:
        """Nobody goes on before it: it has waited for long, and only calls in flight are in its way."""
        waits = run.parked
        if waits is None or now - waits.since <= aged_ms:
            return False
        place = UNITS.index(waits.unit)
        for account in self.accounts(run.scopes):
            limit = self.limit(account)[place]
            if (account if isinstance(account, str) else account[0]) == waits.list and limit is not None:
                books, letter = self.total(account), "ut"[place]
                used = books[f"{letter}s"] + books[f"{letter}e"] - self._own(run, account)[place]
                return any(used + need[place] <= limit for need in waits.needs)
        return False

    def within_limits(self, run: Run) -> bool:
        """Whether all accounts of a run are within their limits: true after every admission."""
        for account in self.accounts(run.scopes):
            books = self.total(account)
            for limit, letter in zip(self.limit(account), "ut", strict=True):
                if (
                    limit is not None
                    and books[f"{letter}s"] + books[f"{letter}r"] + books[f"{letter}e"] > limit
                ):
                    return False
        return True
