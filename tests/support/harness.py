"""An engine in one process: a namespace of the real server, scripted models, a list in place of a broker.

Nothing here waits: a test makes the data old (`age`, `ready`, `steady`) instead of letting time pass.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from agentq.agent import Agent, Budgets, Thread
from agentq.core.failpoints import FailpointError
from agentq.core.lifecycle import RunState
from agentq.core.records import (
    Actor,
    Claim,
    Denied,
    Granted,
    Lease,
    Paced,
    Parked,
    Recovering,
    RunRecord,
    RunSpec,
    Size,
)
from agentq.engine.cache import ThreadCache
from agentq.engine.leases import Leases
from agentq.engine.rescue import rescue_due
from agentq.engine.rows import parse_row
from agentq.engine.snapshot import load
from agentq.engine.step import execute_step
from agentq.engine.submit import draft_run, submit_drafts
from agentq.engine.workbench import Workbench
from agentq.provider.pricing import ModelPricing
from agentq.provider.scripted import ScriptedClient
from agentq.provider.types import ChatRequest, ChatResult, Usage
from agentq.store.checkup import examine
from agentq.store.connect import Store
from agentq.store.ledger import PARK_MS
from agentq.store.scripts import Scripts
from agentq.store.watch import Due, Rescue
from agentq.tools import ToolExecutor, ToolRegistry
from tests.support import feeding, invariants

LEASE_MS = 15_000
GRACE_MS = 5_000
RETENTION_MS = 3_600_000
PRICING = {"scripted-v1": ModelPricing("scripted-v1", "1", "10", 128_000)}
CALL_NANO = 1_500_000
"""What a call of the scripted client costs at these prices: 500 tokens in, 100 out."""
CALL_TOKENS = 600
HELLO = '{"role":"user","content":"hello"}'
SECOND = "\x06\x161"
"""Behind a queue's name: the list of those messages that wait for who is below its share."""


# ── the store ────────────────────────────────────────────────────────────────────────────────────────


def call(store: Store, name: str, *args: str | int) -> list[Any]:
    """The raw reply of one script."""
    return Scripts(store.client, store.keys.prefix).call(name, *args)


def hints_in(store: Store, queue: str) -> list[str]:
    """The messages of a queue in the order in which they are taken: those of who is below its share first."""
    return [
        str(message)
        for name in (queue, queue + SECOND)
        for message in reversed(store.client.lrange(name, 0, -1))
    ]


def nano(amount: int) -> str:
    """Whole nano-USD as dollars in text."""
    return f"{Decimal(amount) / 10**9:f}"


def submit_run(
    store: Store,
    run_id: str = "r1",
    *,
    usd: int | None = None,
    tokens: int | None = None,
    batch: str | None = None,
    tenant: str = "acme",
    custom_id: str | None = None,
    content_hash: str = "h1",
    messages: Sequence[str] = (HELLO,),
    scopes: Sequence[str] = (),
) -> str:
    """Create a run below the engine: no agent, no message sent. Limits are nano-USD and tokens."""
    spec = RunSpec(
        agent="a",
        tenant=tenant,
        batch=batch,
        custom_id=custom_id,
        budgets={"max_usd": None if usd is None else nano(usd), "max_tokens": tokens},
        content_hash=content_hash,
        scopes=tuple(scopes),
    )
    answers = store.runs.submit([(run_id, spec, messages)], heads=["{}"], retention_ms=RETENTION_MS)
    return answers[0][1]


def open_batch(store: Store, name: str = "b1", *, usd: int | None = None, tokens: int | None = None) -> None:
    """A batch that is loading."""
    store.batches.open(name, agent="a", tenant="acme", usd=usd, tokens=tokens, retention_ms=RETENTION_MS)


def claim_run(store: Store, run_id: str = "r1") -> Claim:
    """Claim whichever step is next; it must be there."""
    claim = store.runs.claim(run_id, None, LEASE_MS)
    assert claim is not None
    return claim


def reserve(
    store: Store,
    lease: Lease,
    n: int = 1,
    *,
    usd: int,
    tokens: int,
    escrow_usd: int = 0,
    escrow_tokens: int = 0,
    policy: str = "deny",
) -> Granted | Denied | Parked | Recovering | Paced | str:
    """Reserve a request of one size. By default a denial is told and the run is not parked."""
    size = Size(0, usd, tokens, escrow_usd, escrow_tokens)
    return store.ledger.reserve(lease, n, [size], policy=policy)


def reserve_args(
    lease: Lease, n: int, *sizes: tuple[int, ...], policy: str = "deny", park_ms: int = 60_000
) -> list[str | int]:
    """The raw arguments of budget_reserve.lua; a size is cap, usd, tokens, escrow usd, escrow tokens."""
    flat = [number for size in sizes for number in size]
    return [lease.run_id, lease.fence, n, "me", 0, policy, "", park_ms, 0, len(flat), *flat]


def age(store: Store, run_id: str) -> None:
    """Make a live run due in `watch`, as if its lease, its grace or its deadline had passed."""
    store.client.zadd(store.keys.watch, {run_id: 1}, xx=True)


def ready(store: Store, run_id: str) -> None:
    """Let a run's delay be over."""
    store.client.hset(store.keys.run(run_id), "not_before", 1)
    age(store, run_id)


def unswept(store: Store) -> None:
    """Every list of parked runs may be swept at once: nobody has just done it."""
    for name in store.client.hkeys(store.keys.ledger):
        if str(name).startswith("sweep:"):
            store.client.hdel(store.keys.ledger, str(name))


def steady(store: Store) -> None:
    """Ticks have come without a gap: nobody is given patience."""
    store.client.hset(
        store.keys.clock, mapping={"tick": store.watch.server_ms(), "patience": 0, "granted": 0}
    )


def window(store: Store, scope: str, kind: str) -> str:
    """The account of the day or month that is running now, by the server's clock."""
    today = datetime.fromtimestamp(store.watch.server_ms() / 1000, UTC)
    return f"{scope}@{kind}:{today:%Y-%m-%d}" if kind == "day" else f"{scope}@{kind}:{today:%Y-%m}"


def turn(store: Store, kind: str = "day") -> None:
    """A day or a month is over: whatever happened in it, and before it, happened one of them earlier."""
    client, keys = store.client, store.keys

    def older(text: str) -> str:
        return re.sub(rf"(?<=@{kind}:)[0-9-]+", lambda found: earlier(found[0], kind), text)

    for marker in (keys.scope(""), keys.checkpoint("")):
        for key in sorted(client.scan_iter(match=f"{marker}*@{kind}:*", count=1000)):
            client.rename(key, older(key))
    for part in ("open", "forfeits"):
        for key in client.scan_iter(match=keys.run("*", part), count=1000):
            client.hset(key, mapping={name: older(str(text)) for name, text in client.hgetall(key).items()})
    entries: Any = client.xrange(keys.log)
    if entries:  # a stream that is empty by now still knows its last number
        last: Any = client.xinfo_stream(keys.log)
        client.delete(keys.log)
        for number, fields in entries:
            client.xadd(keys.log, {name: older(text) for name, text in fields.items()}, id=number)
        client.execute_command("XSETID", keys.log, last["last-generated-id"])


def earlier(date: str, kind: str) -> str:
    """The day, or month, before."""
    if kind == "day":
        return f"{datetime.fromisoformat(date) - timedelta(days=1):%Y-%m-%d}"
    return f"{datetime.fromisoformat(date + '-01') - timedelta(days=1):%Y-%m}"


def by(reason: str = "") -> Actor:
    """A person, with an operation of its own each time."""
    return Actor(f"o{secrets.token_hex(4)}", "ann", reason)


def due(store: Store, *, room: int = 100, rescues: int = 100) -> Due:
    """What a tick of a worker with so much room finds."""
    return store.watch.due(LEASE_MS, room=room, rescues=rescues)


def dump(store: Store, *, without: Sequence[str] = ("clock",)) -> dict[str, Any]:
    """Every key of the namespace with its content, and whether it has an end."""
    client, prefix = store.client, store.keys.prefix
    keys = sorted(key for key in client.scan_iter(match=f"{prefix}*", count=1000))
    keys = [key for key in keys if key.removeprefix(prefix) not in without]
    kinds, contents = client.pipeline(transaction=False), client.pipeline(transaction=False)
    for key in keys:
        kinds.type(key)
    for key, kind in zip(keys, kinds.execute(), strict=True):
        match kind:
            case "hash":
                contents.hgetall(key)
            case "list":
                contents.lrange(key, 0, -1)
            case "set":
                contents.sort(key, alpha=True)
            case "zset":
                contents.zrange(key, 0, -1, withscores=True)
            case "stream":
                contents.xrange(key)
            case _:
                contents.get(key)
        contents.ttl(key)
    found = contents.execute()
    return {
        key.removeprefix(prefix): (content, ttl != -1)
        for key, content, ttl in zip(keys, found[::2], found[1::2], strict=True)
    }


def twice(store: Store, name: str, *args: str | int) -> list[Any]:
    """Call a script, and again as a client does whose reply was lost: same words, same state."""
    first = call(store, name, *args)
    before = dump(store)
    assert call(store, name, *args) == first
    assert dump(store) == before
    return first


@contextmanager
def untouched(store: Store) -> Iterator[None]:
    """Nothing in the namespace changes inside the block."""
    before = dump(store, without=())
    yield
    assert dump(store, without=()) == before


def state_of(store: Store, run_id: str = "r1") -> str:
    """The run's state, as it is stored."""
    return str(store.client.hget(store.keys.run(run_id), "state"))


def fence_of(store: Store, run_id: str = "r1") -> int:
    """The number in the run's fence."""
    return int(str(store.client.hget(store.keys.run(run_id), "fence")).partition("-")[0])


def money(store: Store, scope: str) -> dict[str, int]:
    """A scope's fields that are not zero, without the limits."""
    fields = store.client.hgetall(store.keys.scope(scope))
    amounts = {"us", "ur", "ue", "ui", "uf", "uo", "ts", "tr", "te", "ti"}
    return {str(k): int(v) for k, v in sorted(fields.items()) if k in amounts and int(v)}


# ── invariants ───────────────────────────────────────────────────────────────────────────────────────


def entries_of(store: Store) -> list[dict[str, str]]:
    """The ledger's log, whose numbers have no gap and go on where the checkpoint ends."""
    return invariants.entries(dump(store, without=()))


def check_invariants(store: Store, run_ids: Sequence[str], *, capped: bool = True) -> None:
    """What holds at every instant, for all runs of the namespace.

    Args:
        store: the namespace.
        run_ids: every run that was created.
        capped: no account stands above its limit (not where a test made a call cost more than its bound).
    """
    state = dump(store, without=())
    invariants.check(state, run_ids, capped=capped)
    feeding.check(state, store.watch.server_ms())
    check_runs(store)


def check_runs(store: Store, *, besides: Sequence[str] = ("overdue",)) -> None:
    """The checkup finds nothing `besides` what a test means: here it makes runs due, and no worker looks."""
    found = [finding for finding in examine(store).findings if finding.code not in besides]
    assert not found, found


# ── the engine ───────────────────────────────────────────────────────────────────────────────────────


class Clock:
    """Seconds that pass only when a test says so."""

    def __init__(self) -> None:
        self.seconds = 1000.0
        self.jump = 0.0
        """How far it jumps each time that somebody looks."""

    def __call__(self) -> float:
        self.seconds += self.jump
        return self.seconds


Reply = ChatResult | Exception | Callable[[ChatRequest], ChatResult | Exception]


@dataclass
class Moody(ScriptedClient):
    """Plays its script, after one thing of `moods` for each call: None, an error to raise, or a function."""

    moods: list[Any] = field(default_factory=list)
    billed: list[Usage] = field(default_factory=list)
    """What the provider would put on its invoice."""

    def complete(self, req: ChatRequest) -> ChatResult:
        self.requests.append(req)
        mood = self.moods.pop(0) if self.moods else None
        if callable(mood):
            mood = mood(req)
        if isinstance(mood, BaseException):
            if getattr(mood, "billed", None) is not False:
                self.billed.append(self.usage)
            raise mood
        result = mood if isinstance(mood, ChatResult) else self._play(req)
        self.billed.append(result.usage or self.usage)
        return result

    @property
    def bill_nano(self) -> int:
        """The invoice."""
        return sum(PRICING["scripted-v1"].cost_nano(usage) for usage in self.billed)


def make_agent(client: Any, *tools: Callable[..., Any], **options: Any) -> Agent:
    """An agent with these tools and with prices."""
    options.setdefault("pricing", PRICING)
    return Agent(client, ToolExecutor(ToolRegistry(tools)), **options)


@dataclass
class Rig:
    """A worker's bench whose messages go to a list, and whose clock of leases stands still."""

    store: Store
    agents: dict[str, Agent] = field(default_factory=dict)
    queue: list[tuple[str, int]] = field(default_factory=list)
    clock: Clock = field(default_factory=Clock)
    submitted: list[str] = field(default_factory=list)
    cache: ThreadCache | None = None
    """The threads that it keeps between steps; None: each step is another process."""
    park_ms: int = PARK_MS
    """How long its runs may wait for money."""
    run_limits: Budgets = field(default_factory=Budgets)
    """As in the settings."""

    @property
    def bench(self) -> Workbench:
        """What `execute_step` needs."""
        return Workbench(
            store=self.store,
            agents=self.agents,
            leases=Leases(self.store.watch, lease_ms=LEASE_MS, longest_seconds=1200, now=self.clock),
            dispatch=lambda run_id, step: self.queue.append((run_id, step)),
            lease_ms=LEASE_MS,
            approval_ms=60_000,
            park_ms=self.park_ms,
            run_limits=self.run_limits,
            cache=ThreadCache() if self.cache is None else self.cache,
        )

    def agent(self, client: Any, *tools: Callable[..., Any], name: str = "a", **options: Any) -> Agent:
        """Define an agent."""
        self.agents[name] = make_agent(client, *tools, **options)
        return self.agents[name]

    def submit(
        self,
        task: str = "do it",
        *,
        agent: str = "a",
        batch: str | None = None,
        budgets: Budgets | None = None,
        thread: Thread | None = None,
        **row: Any,
    ) -> str:
        """Submit one run and send its first message; answers its id."""
        draft = draft_run(
            agent,
            self.agents[agent],
            parse_row({"input": task, **row}),
            tenant="acme",
            batch=batch,
            budgets=budgets,
            thread=thread,
        )
        answers = submit_drafts(
            [draft], store=self.store, dispatch=self.bench.dispatch, retention_ms=RETENTION_MS
        )
        self.submitted += [run_id for word, run_id in answers if word == "CREATED"]
        return draft.run_id

    def step(self) -> None:
        """Work on the oldest message."""
        run_id, step = self.queue.pop(0)
        execute_step(run_id, step, bench=self.bench)

    def drain(self, *, most: int = 200) -> None:
        """Work until no message is left."""
        for _ in range(most):
            if not self.queue:
                return
            self.step()
        raise AssertionError(f"{most} messages and no end: {self.queue}")

    def rescue(self) -> list[Rescue]:
        """What a tick does."""
        return rescue_due(
            self.store.watch, self.store.ledger, self.bench.dispatch, lease_ms=LEASE_MS, room=100
        )

    def die(self, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
        """Do a step whose worker dies at this point."""
        with monkeypatch.context() as patch:
            patch.setenv("AGENTQ_FAILPOINTS", f"{point}=raise")
            with pytest.raises(FailpointError):
                self.step()

    def revive(self, run_id: str) -> list[Rescue]:
        """The worker that holds the run is dead and its lease is over: a tick takes the step back."""
        steady(self.store)
        age(self.store, run_id)
        return self.rescue()

    def record(self, run_id: str) -> RunRecord:
        """The run as it stands."""
        record = self.store.runs.read(run_id)
        assert record is not None
        return record

    def thread(self, run_id: str) -> Thread:
        """Its thread as it stands."""
        parts = self.store.runs.parts(run_id)
        assert parts is not None
        return load(parts, self.record(run_id).spec.detector).thread

    def check(self, *, capped: bool = True) -> None:
        """The invariants over all runs that were submitted here."""
        check_invariants(self.store, self.submitted, capped=capped)


def finish_or_fail(rig: Rig, run_id: str) -> RunRecord:
    """Work until the run has ended; delays are cut short, and what parked runs wait for is looked at."""
    for _ in range(100):
        rig.drain()
        record = rig.record(run_id)
        if record.state is RunState.ENDED:
            return record
        assert record.state in {RunState.QUEUED, RunState.PARKED}, record
        if record.state is RunState.QUEUED:
            ready(rig.store, run_id)
        rig.rescue()
        unswept(rig.store)
    pytest.fail(f"{run_id} does not end: {rig.record(run_id)}")
