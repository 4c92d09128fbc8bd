"""What the store hands out: plain, frozen records. Whoever wants a `Thread` makes it from these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from agentq.core.lifecycle import RunState, StopReason


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to work on one step of a run until the lease ends. `fence` travels with every write."""

    run_id: str
    fence: str
    step: int
    scopes: str = field(default="", compare=False)
    """The run's scopes, the widest first: where its bill belongs, should the server forget the run."""


@dataclass(frozen=True, slots=True)
class ThreadParts:
    """The stored pieces of a thread, still encoded: JSON, but for the results, texts by signature."""

    head: str = "{}"
    messages: str = "[]"
    trace: str = "[]"
    tool_results: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunSpec:
    """What was submitted: fixed for the life of the run."""

    agent: str
    tenant: str = "default"
    batch: str | None = None
    custom_id: str | None = None
    budgets: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    context: Mapping[str, Any] = field(default_factory=dict)
    detector: Mapping[str, Any] | None = None
    content_hash: str = ""
    on_exhausted: str = "park"
    """What a dry scope means that says nothing itself: park, stop or winddown."""
    scopes: tuple[str, ...] = ()
    """Further scopes that it is in: `agent:`, `model:`, `key:`."""
    ancestors: tuple[str, ...] = ()
    """Of a child, the runs around it: the root first, its parent last. `batch` is then where it spends: it is
    none of its rows."""
    priority: int = 0
    """Within its batch, 0 to 9: higher ones are started first."""
    call: Mapping[str, Any] = field(default_factory=dict)
    """Of a line of a provider's batch file: its `dialect`; without an agent also `model` and `options`, and
    then the run is this one call."""

    def as_dict(self) -> dict[str, Any]:
        """A JSON object, without the fields that say nothing and that an older release does not know."""
        young = {"priority": self.priority, "call": dict(self.call)}
        return {name: value for name, value in asdict(self).items() if young.get(name, True)}

    @property
    def parent(self) -> str | None:
        """The run that started it, of a child."""
        return self.ancestors[-1] if self.ancestors else None

    def scopes_of(self, run_id: str) -> tuple[str, ...]:
        """All scopes of the run that this became, the widest first."""
        batch = (f"batch:{self.batch}",) if self.batch else ()
        around = (f"run:{ancestor}" for ancestor in self.ancestors)
        return ("global", f"tenant:{self.tenant}", *self.scopes, *batch, *around, f"run:{run_id}")


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided about a call that waited for a person.

    `verdict` is approve, deny or expired (nobody decided in time).
    """

    verdict: str
    by: str = ""
    reason: str = ""
    arguments: str = ""
    """JSON to use in place of the call's own; empty: as it was asked for."""
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class Claim:
    """A granted step: the lease, the run as it was submitted, its thread so far, and the server's clock."""

    lease: Lease
    spec: RunSpec
    phase: str
    parts: ThreadParts | None
    """None: the thread is as it was after the commit that the claim named."""
    spent_ms: int
    failures: int
    """Failed model calls in a row; `unclear` of them may have been billed."""
    unclear: int
    now_ms: int
    failing_ms: int = 0
    """When the first of these failures was; 0 without any."""
    wind: tuple[str, str] | None = None
    """The unit and the scope for which it has waited too long: its closing turn is due."""
    definition: str = ""
    """The hash of its agent, as it was when the run last met it."""
    is_suspect: bool = False
    """Two processes have died in this step: it may be what killed them."""
    effects: Mapping[str, str] = field(default_factory=dict)
    """Where tools come next: call id to what the journal says of it."""
    decisions: Mapping[str, Decision] = field(default_factory=dict)
    """Where tools come next: call id to what a person has decided."""
    limits: tuple[int | None, int | None] | None = None
    """Its own limits in nano-USD and tokens, where somebody has changed those that it was submitted with."""


@dataclass(frozen=True, slots=True)
class Reopening:
    """Where an ended run would go on: before its closing turn, if it had one."""

    generation: int
    head: str
    """Of its thread there; `last` is the one with which it ended."""
    last: str
    messages: int
    """How many of its messages stay."""


@dataclass(frozen=True, slots=True)
class Retrial:
    """An ended run as it is to be reopened. Refused when it has another generation by now."""

    run_id: str
    generation: int
    head: str
    messages: int
    event: str
    """For its trace."""
    by: str
    """Who asked."""
    usd: int | Literal["same"] | None = "same"
    """Its limit from now on, in nano-USD; None for none."""
    tokens: int | Literal["same"] | None = "same"
    spec: RunSpec | None = None
    """What it is from now on, where its budgets change."""


@dataclass(frozen=True, slots=True)
class Delta:
    """What a commit adds to a thread: only what is new, and the new head."""

    head: str
    messages: tuple[str, ...] = ()
    trace: tuple[str, ...] = ()
    tool_results: Mapping[str, str] = field(default_factory=dict)
    fields: Mapping[str, str] = field(default_factory=dict)
    """Of the run itself: what it remembers beside its thread."""


@dataclass(frozen=True, slots=True)
class Settlement:
    """How the reservation of one request is closed.

    `how` is `settle` (usd and tokens are what the call cost), `estimate` (the same, where nobody counted),
    `release` (proof that nothing was billed), `restore` (released, back into the escrow) or `forfeit`
    (unclear: charged in full).
    """

    reservation: str
    how: str
    usd: int = 0
    tokens: int = 0
    pace: str = ""
    """Of a call that shares a rate limit: its lane, the tokens taken from it, used, and written."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A model call that failed: what it said, and how many in a row may have been billed by now.

    It counts as more than one failure where no further try of the same model is to follow.
    """

    message: str
    unclear: int
    counts: int = 1


@dataclass(frozen=True, slots=True)
class Size:
    """One size of a request: its output cap and what must be free for it, in whole nano-USD and tokens.

    That is its worst case, and as escrow the worst case of a closing turn after it.
    """

    output_tokens: int
    usd: int
    tokens: int
    escrow_usd: int = 0
    escrow_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Granted:
    """An open reservation: the request may be sent, with this output cap."""

    reservation: str
    usd: int
    tokens: int
    output_tokens: int = 0
    lane: str = ""
    """Of a call that shares a rate limit; `lane_tokens` were taken from it."""
    lane_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Pace:
    """What a call asks of the rate limit that it shares.

    `lane` is provider, account and model, without spaces: `openai:1f0c93ab:gpt-5-mini`. `input_tokens` is
    what it is expected to read.
    """

    lane: str
    input_tokens: int


@dataclass(frozen=True, slots=True)
class Taken:
    """Room for one call: so many tokens were taken from the lane, for this caller."""

    caller: str
    lane: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Paced:
    """No room in a lane for now: ask again in `wait_ms`.

    `why` is pace (others go first), limited (the provider has refused somebody) or quota (its account is
    empty).
    """

    lane: str
    wait_ms: int
    why: str


@dataclass(frozen=True, slots=True)
class Limit:
    """What a provider says of one of its limits; None for what it does not say."""

    limit: int | None = None
    remaining: int | None = None
    reset_ms: int | None = None


@dataclass(frozen=True, slots=True)
class LaneRecord:
    """A lane as it stands. Rates are a minute; None while they are not known."""

    name: str
    account: str
    model: str
    requests_a_minute: int | None
    tokens_a_minute: int | None
    is_named: bool
    """The provider says them itself."""
    waiting: int
    """How many calls wait for room."""
    wait_ms: int
    """How long all wait after a refusal."""
    taken: int
    refused: int
    stopped: str | None = None
    """What the provider said when its account was empty."""
    stopped_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Denied:
    """No scope was touched, and the run is not parked.

    `kind` is wait, winddown, exhausted or never, `unit` usd or tokens. `admitted`: the run holds the
    money of its closing turn.
    """

    scope: str
    unit: str
    kind: str
    admitted: bool = False


@dataclass(frozen=True, slots=True)
class Parked:
    """The run waits for money of this scope, without a lease. `kind` as of a denial, or frozen."""

    scope: str
    unit: str
    kind: str

    @property
    def is_dry(self) -> bool:
        """Whether it waits for a person (or the next day), not only for calls in flight."""
        return self.kind != "wait"


@dataclass(frozen=True, slots=True)
class Recovering:
    """The server has lost writes: nothing is reserved until all workers have said what they hold."""

    until_ms: int


@dataclass(frozen=True, slots=True)
class Account:
    """One scope of the ledger, in whole nano-USD and tokens. A limit of None is tracked, not limited."""

    scope: str
    limit_nano: int | None = None
    spent_nano: int = 0
    reserved_nano: int = 0
    escrowed_nano: int = 0
    idle_nano: int = 0
    """The part of `escrowed_nano` that parked, waiting and held runs hold."""
    forfeited_nano: int = 0
    overage_nano: int = 0
    tokens_limit: int | None = None
    tokens_spent: int = 0
    tokens_reserved: int = 0
    tokens_escrowed: int = 0
    tokens_idle: int = 0
    words: frozenset[str] = frozenset()
    """Its configuration: day, month (windows that count), frozen; park, stop or winddown."""

    @property
    def left_nano(self) -> int | None:
        """What may still be reserved; None without a limit."""
        if self.limit_nano is None:
            return None
        return self.limit_nano - self.spent_nano - self.reserved_nano - self.escrowed_nano

    @property
    def tokens_left(self) -> int | None:
        """The tokens that may still be reserved; None without a limit."""
        if self.tokens_limit is None:
            return None
        return self.tokens_limit - self.tokens_spent - self.tokens_reserved - self.tokens_escrowed


@dataclass(frozen=True, slots=True)
class Actor:
    """Who changes the ledger by hand, why, and under which id it is done once."""

    operation: str
    by: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PendingCall:
    """A tool call that waits for a decision."""

    id: str
    tool: str
    arguments: str
    signature: str
    asked_at_ms: int
    deadline_ms: int
    default: str = "stop"
    """What happens at the deadline: stop (the run ends as `approval_expired`) or tell (the model)."""
    kind: str = "approval"
    """Why a person is asked: approval (before it is made) or unknown (it may have acted: make it again?)."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run as it stands. Money is nano-USD, times are the server's milliseconds since 1970."""

    id: str
    spec: RunSpec
    state: RunState
    step: int
    phase: str
    created_ms: int
    stop_reason: StopReason | None = None
    stop_scope: str | None = None
    stop_detail: str | None = None
    is_row: bool = False
    """Whether it is a row that is no run yet, or that ended without becoming one."""
    answer: str | None = None
    has_output: bool = False
    """Whether the answer is JSON of the form that its agent wants."""
    model: str = ""
    """The model that gave the answer, as its provider names it."""
    is_cut: bool = False
    """Whether the answer ends where its output cap was."""
    body: str = ""
    """Of a run of one call: what the provider answered, as JSON; empty when that was too long to keep."""
    usd_nano: int = 0
    tokens: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    steps: int = 0
    attempts: int = 1
    seconds_ms: int = 0
    failures: int = 0
    """Failed model calls in a row, up to now."""
    last_error: str | None = None
    started_ms: int | None = None
    ended_ms: int | None = None
    pending: tuple[PendingCall, ...] = ()
    stopped_at: str | None = None
    """Where it was when it was cancelled."""
    paused: str | None = None
    """Who paused it; None when it is not paused itself."""
    generation: int = 0
    """How often it was reopened by a retry."""
    definition: str = ""
    """The hash of its agent, as it was when the run last met it."""
    parked: Parked | None = None
    parked_ms: int | None = None
    """Since when it has waited for money, also over several times."""
    children: int = 0
    """How many runs it has started; `descendants` of these, and of those that they started, are live."""
    descendants: int = 0
    gathering: int | None = None
    """Of a run that waits for children: for how many, when it began to wait, until `deadline_ms`."""
    deadline_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Family:
    """What a gather looks at."""

    children: frozenset[str]
    """All runs that its run has started."""
    deadline_ms: int | None
    """Its own, if it has waited before."""
    records: list[RunRecord | None]
    """The runs that it asked for; None for one that is kept no longer."""


@dataclass(frozen=True, slots=True)
class RowEntry:
    """A row as it is written: everything about its run that other rows do not share."""

    run_id: str
    custom_id: str
    content_hash: str
    priority: int
    payload: str
    """JSON: pattern, custom_id, content hash, what its spec has beside the pattern's, its own limit in
    nano-USD or nothing, messages."""


@dataclass(frozen=True, slots=True)
class TenantRecord:
    """A tenant as the feeder sees it."""

    name: str
    in_flight: int
    batches: int
    """Those with rows that take turns."""
    weight: int = 1
    """With twice the weight it has twice the tokens of another."""
    max_in_flight: int | None = None


@dataclass(frozen=True, slots=True)
class Opened:
    """A batch that somebody has begun to load."""

    total: int
    """How many rows it had."""
    serial: str
    """What the ids of its rows end with."""
    now_ms: int


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """A batch as it stands. `agent` is empty when its rows name several."""

    name: str
    agent: str
    tenant: str
    total: int
    ended: int
    sealed: bool
    created_ms: int
    stop_reasons: Mapping[str, int] = field(default_factory=dict)
    descendants: int = 0
    """Live runs that its rows have started, and what those have started."""
    paused: str | None = None
    """Who paused it."""
    rows: int = 0
    """Those that are no runs yet, of a load that is not sealed too."""
    open: int = 0
    """Runs that have not ended."""
    in_flight: int = 0
    """Of these, how many are queued and due, or running."""
    loader: str | None = None
    """Who adds rows to it, or did when he was killed."""
    loader_gone: bool = False
    """Whether nobody has heard of the loader for so long that another may take his place."""
    loading: int = 0
    """Of `rows`, how many are of a load that is not sealed."""
    cancelled: str | None = None
    """Who cancelled it."""
    max_in_flight: int | None = None
    max_open: int | None = None
    priority: int = 0
    at_ms: int | None = None
    """None of its rows is admitted before; `starts_ms` is the same while it lies ahead."""
    starts_ms: int | None = None
    notify: str | None = None
    """The URL that is told when it is over; `notified_ms`: when it was."""
    notified_ms: int | None = None
    notify_error: str | None = None
    """Why it was not, the last time that it was tried."""
    dry: str | None = None
    """The run that waits for money, so that no row is admitted."""
    pilot: int | None = None
    """How many of its rows are a sample that must end first; None once it is decided about the others."""
    confirm_above_nano: int | None = None
    """Without a limit of its own: a person is asked when the pilot says that it costs more."""
    counters: Mapping[str, int] = field(default_factory=dict)
    """What its ended runs add up to: see `agentq.agent.metrics`."""
