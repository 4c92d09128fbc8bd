"""Every key in Redis: its name, type, fields and end. The scripts build the same names in `_base.lua`.

All keys of a namespace share one hash tag, `{aq:<namespace>}:`, so they live in one slot and one
script may touch them all. "retention" is `retention_days` after the run, or the batch, has ended, and
all that it has started.

    key                  type    fields or members                             end
    ───────────────────  ──────  ────────────────────────────────────────────  ────────────────────────────
    run:<r>              hash    spec (as submitted) scopes tenant batch       retention of the run
                                 custom_id hash created ttl · state step phase
                                 fence op started claimed ms head · not_before
                                 hints failures unclear failing error deaths
                                 rescues · pending deadline · parked (since)
                                 park_scope park_unit park_kind park_need
                                 park_policy
                                 park_till wind limits · parent children (in all)
                                 descendants (live) gathering wake_hint ·
                                 paused (by) on_expired definition
                                 generation reopen reopen_head stopped_at
                                 counted (added to its batch's counters)
                                 turn (tokens that it was charged with) ·
                                 stop_reason stop_scope stop_detail answer
                                 output model finish (stop, length) body
                                 (of one call: its provider's) ended
    run:<r>:msgs         list    messages, JSON, append-only                   retention of the run
    run:<r>:trace        list    trace events, compact JSON, append-only       retention of the run
    run:<r>:cache        hash    call signature → result of a side effect      retention of the run
    run:<r>:effects      hash    call id → "started fence step signature" or   retention of the run
                                 "done fence step signature result", the
                                 result as JSON
    run:<r>:decisions    hash    call id → a person's decision, JSON           retention of the run
    run:<r>:kept         hash    reference → a result too long for msgs        retention of the run
    run:<r>:open         hash    reservation → "usd tokens [cap] [windows]";   gone when the run has ended
                                 escrow likewise; n: the last request
    run:<r>:forfeits     hash    reservation → likewise, charged in full       retention of the run
    run:<r>:children     hash    custom_id, or id → "content_hash run"         retention of the run
    run:<r>:gathers      hash    gather that has waited → its deadline (ms)    retention of the run
    run:<r>:awaits       set     live children that the run waits for          gone when it goes on
    scope:run:<r>        hash    as every scope                                retention of the run
    scope:batch:<b>      hash    as every scope                                retention of the batch
    scope:<s>            hash    ul us ur ue ui uf uo ua · tl ts tr te ti ta   stays
                                 · dul dtl dc (defaults) c (words)
    scope:<s>@<window>   hash    ul tl c: the limits of each day or month      stays
    scope:<s>@day:<date> hash    us ur …: one day, or month                    62 days after its end
    checkpoint:<scope>   hash    what the trimmed part of the log adds up to   as the scope
    ledger               hash    born schema recovering pinned exported overrun       stays
                                 folded parked op:<process> sweep:<list>
    parked               set     lists that are not empty                      stays, entries leave
    parked:<list>        zset    parked run → since when it waits (ms)         gone when empty
    limited              set     agent:, model: and key: scopes with a limit   stays
    events               list    what workers are to log, JSON, at most 1,000  stays, entries leave
    incidents            list    rollbacks of the server, JSON, at most 1,000  stays
    reasserted           hash    run:reservation → "usd tokens" after one      7 days after the last
    op:<id>              string  the reply to an operator's command            7 days
    processes            zset    process that reserves → last seen (ms)        stays, entries leave
    inbox                zset    run that waits for a person → since when (ms) stays, entries leave
    watch                zset    live run → when to look at it (ms)            stays
    clock                hash    tick patience granted (ms)                    stays
    log                  stream  0-1, 0-2, …: one entry for each change of     stays, about 100,000 entries
                                 money or limits: o i s d m [c e a r w]
    batch:<b>            hash    agent tenant total ended sealed created ttl   retention of the batch
                                 serial, cancelled (by) paused (by)
                                 descendants (live) loader ("who till was")
                                 max_in_flight max_open priority at (ms)
                                 dry (run that waits for money) mean (tokens)
                                 denied ("spent how-often": runs without
                                 money, one behind the other)
                                 pilot (rows in it) confirm_above
                                 notify (URL) told (rows it was over with)
                                 notice (which end) notice_at notice_tries
                                 notified (ms) notify_error
                                 stop:<reason> and m:<metric> counters
    batch:<b>:ids        hash    custom_id → "content_hash run"                retention of the batch
    batch:<b>:runs       list    rows and runs in input order                  retention of the batch
    batch:<b>:open       set     runs that have not ended                      empty when the batch is over
    batch:<b>:delayed    set     of these, queued ones that are not due yet    empty when the batch is over
    batch:<b>:done       list    runs in the order in which they ended         retention of the batch
    batch:<b>:rows       hash    run that a row will be → its payload, JSON    retention of the batch
    batch:<b>:templates  hash    what rows have in common, JSON                retention of the batch
    batch:<b>:feed       zset    row → priority and order                      gone when all are admitted
    batch:<b>:loading    zset    the same, of a load that is not sealed        gone when it is
    batch:<b>:dropped:*  zset    the same, of rows that ended as no runs, by   retention of the batch
                                 the reason: cancelled, cost_budget, …
    serial:<serial>      string  the batch whose rows have it in their ids     retention of the batch
    feeder               hash    window max tenant_max hint serial             stays
                                 max:<tenant> weight:<tenant>
    turns                zset    tenant with rows to admit → virtual time      gone when there are none
    turns:<tenant>       zset    its batches → virtual time less priority      gone when there are none
    aside                zset    tenant that takes no turns now → its virtual  stays, entries leave
                                 time, where that is ahead
    starts               zset    batch → when its rows may be admitted (ms)    stays, entries leave
    notices              zset    batch that is over → when to say so (ms)      stays, entries leave
    schedules            zset    schedule → when to look at it (ms), inf for   stays, entries leave
                                 one that is paused
    schedule:<n>         hash    spec hash (of it and its rows) rows bytes     until it is removed
                                 part created next asked (by hand) · paused
                                 (by) claim (who makes a batch) tries begun
                                 (the time and when it was taken on) · made
                                 last (batch) last_at outcome detail done
    schedule:<n>:rows:*  list    its rows as text, some hundreds each          with it; an hour unset
    pilots               set     batches whose pilot is not decided about      gone when there are none
    slots                set     runs in flight: queued and due, or running    gone when there are none
    slots:t:<tenant>     set     the same of a tenant                          gone when there are none
    slots:b:<batch>      set     the same of a batch                           gone when there are none
    flying               set     tenants with runs in flight                   gone when there are none
    worker_slots         hash    worker process → steps at once                stays, entries leave
    batches              zset    batch → created (ms)                          stays, entries leave
    ids:<t>:<custom_id>  string  "content_hash run" of a single run            retention of the run
    lane:<lane>          hash    at mark until fails back score tight call     a day after its last call
                                 apart output book booked hold turn taken
                                 refused kept · r_ and t_: rate level cap
                                 size cut top lack n
    line:<lane>          zset    who waits for room → since when (ms)          a day after the last
    waits:<lane>         zset    who waits for room → when he asks again (ms)  a day after the last
    account:<account>    hash    since why lane probe prober: it has no quota  a day, or its next answer
    lanes                zset    lane → its last use (ms)                      a day after the last
    workers              zset    worker process → alive until (ms)             stays, entries leave
    schemas              hash    worker process → newest form of the state     stays, entries leave
                                 that it understands

In a scope `u` is nano-USD and `t` tokens; `l` limit, `s` spent, `r` reserved, `e` escrowed, `i` the part of `e` that
idle runs hold, `f` forfeited (it is spent too), `o` overage, `a` the alert that was given last (percent). The names
are short because they are written to the append-only file at each step. In the log: `o` operation, `i` id, `s` scopes,
`d` by how much their fields change, `m` when (ms), `c` catalogue of prices, `e` estimated, `a` actor, `r` reason, `w` words.
"""

from __future__ import annotations

from dataclasses import dataclass

PERMANENT = (
    "watch",
    "clock",
    "log",
    "batches",
    "workers",
    "ledger",
    "parked",
    "limited",
    "events",
    "incidents",
    "processes",
    "inbox",
    "schemas",
    "feeder",
    "aside",
    "starts",
    "notices",
    "schedules",
    "worker_slots",
)
"""Keys without an end, besides the scopes that outlive runs and batches."""


@dataclass(frozen=True, slots=True)
class Keys:
    """Builds the keys of one namespace."""

    namespace: str

    @property
    def prefix(self) -> str:
        """The routing key of every script: the hash tag that all keys share."""
        return f"{{aq:{self.namespace}}}:"

    @property
    def broker_prefix(self) -> str:
        """Put before every key of the Celery broker when it shares the state's server."""
        return f"{self.prefix}mq:"

    @property
    def watch(self) -> str:
        """Live runs by the time at which somebody must look at them."""
        return f"{self.prefix}watch"

    @property
    def inbox(self) -> str:
        """Runs that wait for a person, by the time since which they do."""
        return f"{self.prefix}inbox"

    @property
    def schemas(self) -> str:
        """The newest form of the state that each worker process understands."""
        return f"{self.prefix}schemas"

    @property
    def clock(self) -> str:
        """When the tick last ran, and whether it is patient."""
        return f"{self.prefix}clock"

    @property
    def log(self) -> str:
        """The ledger's log."""
        return f"{self.prefix}log"

    @property
    def ledger(self) -> str:
        """What concerns the ledger as a whole."""
        return f"{self.prefix}ledger"

    @property
    def incidents(self) -> str:
        """Rollbacks that were detected."""
        return f"{self.prefix}incidents"

    @property
    def limited(self) -> str:
        """The agents, models and keys that have a limit."""
        return f"{self.prefix}limited"

    @property
    def lanes(self) -> str:
        """The names of all lanes."""
        return f"{self.prefix}lanes"

    def lane(self, lane: str) -> str:
        """The rates and buckets of a lane: `provider:account:model`."""
        return f"{self.prefix}lane:{lane}"

    def waits(self, lane: str) -> str:
        """Who waits for room in a lane."""
        return f"{self.prefix}waits:{lane}"

    def account(self, account: str) -> str:
        """Why nobody calls a provider's account: `provider:account`."""
        return f"{self.prefix}account:{account}"

    def operation(self, operation: str) -> str:
        """The reply to an operator's command."""
        return f"{self.prefix}op:{operation}"

    def parked(self, scope: str) -> str:
        """The runs that wait for money of this scope, or of its windows."""
        return f"{self.prefix}parked:{scope}"

    def checkpoint(self, scope: str) -> str:
        """What the trimmed part of the log adds up to for a scope."""
        return f"{self.prefix}checkpoint:{scope}"

    @property
    def batches(self) -> str:
        """Names of batches by age."""
        return f"{self.prefix}batches"

    @property
    def workers(self) -> str:
        """Worker processes by the time until which they count as alive."""
        return f"{self.prefix}workers"

    def run(self, run_id: str, part: str = "") -> str:
        """A run's hash, or one of its parts: msgs, trace, cache, effects, decisions, and so on."""
        return f"{self.prefix}run:{run_id}{part and ':' + part}"

    def scope(self, scope: str) -> str:
        """A scope's account."""
        return f"{self.prefix}scope:{scope}"

    def batch(self, name: str, part: str = "") -> str:
        """A batch's hash, or one of its parts: ids, runs, open, rows, feed, done, and so on."""
        return f"{self.prefix}batch:{name}{part and ':' + part}"

    @property
    def notices(self) -> str:
        """Batches that are over, of which somebody wants to be told, by when to do it."""
        return f"{self.prefix}notices"

    @property
    def schedules(self) -> str:
        """Schedules by when somebody must look at them."""
        return f"{self.prefix}schedules"

    def schedule(self, name: str, part: str = "") -> str:
        """A schedule's hash, or its rows."""
        return f"{self.prefix}schedule:{name}{part and ':' + part}"

    def serial(self, serial: str) -> str:
        """The batch whose rows have this in their ids."""
        return f"{self.prefix}serial:{serial}"

    @property
    def feeder(self) -> str:
        """How much may be in flight."""
        return f"{self.prefix}feeder"

    @property
    def slots(self) -> str:
        """The runs in flight."""
        return f"{self.prefix}slots"

    def slots_of(self, kind: str, name: str) -> str:
        """The runs in flight of a tenant (`t`) or a batch (`b`)."""
        return f"{self.prefix}slots:{kind}:{name}"

    def turns(self, tenant: str = "") -> str:
        """The tenants that take turns, or a tenant's batches that do."""
        return f"{self.prefix}turns{tenant and ':' + tenant}"

    @property
    def worker_slots(self) -> str:
        """How many steps each worker process works on at once."""
        return f"{self.prefix}worker_slots"
