"""Every key in Redis: its name, type, fields and end. The scripts build the same names in `_prelude.lua`.

All keys of a namespace share one hash tag, `{aq:<namespace>}:`, so they live in one slot and one
script may touch them all. "retention" is `retention_days` after the run, or the batch, has ended.

    key                  type    fields or members                             end
    ───────────────────  ──────  ────────────────────────────────────────────  ────────────────────────────
    run:<r>              hash    spec (as submitted) scopes tenant batch       retention of the run
                                 custom_id hash created ttl · state step phase
                                 fence rn op started claimed ms head ·
                                 not_before hints failures unclear error deaths
                                 rescues · pending deadline · stop_reason
                                 stop_scope stop_detail answer ended
    run:<r>:msgs         list    messages, JSON, append-only                   retention of the run
    run:<r>:trace        list    trace events, compact JSON, append-only       retention of the run
    run:<r>:cache        hash    call signature → result of a side effect      retention of the run
    run:<r>:open         hash    reservation → "usd tokens"; escrow likewise   empty when the run has ended
    run:<r>:forfeits     hash    reservation → "usd tokens" charged in full    retention of the run
    scope:run:<r>        hash    as every scope                                retention of the run
    scope:batch:<b>      hash    as every scope                                retention of the batch
    scope:<s>            hash    ul us ur ue uf uo · tl ts tr te               stays: global, tenant:<t>
    watch                zset    live run → when to look at it (ms)            stays
    clock                hash    tick patience granted (ms)                    stays
    log                  stream  one entry for each change of money            stays, about 100,000 entries
    batch:<b>            hash    agent tenant total ended sealed created ttl,  retention of the batch
                                 stop:<reason> counters
    batch:<b>:ids        hash    custom_id → "content_hash run"                retention of the batch
    batch:<b>:runs       list    runs in input order                           retention of the batch
    batch:<b>:open       set     runs that have not ended                      empty when the batch is over
    batches              zset    batch → created (ms)                          stays, entries leave
    ids:<t>:<custom_id>  string  "content_hash run" of a single run            retention of the run
    workers              zset    worker process → alive until (ms)             stays, entries leave

In a scope `u` is nano-USD and `t` tokens; `l` limit, `s` spent, `r` reserved, `e` escrowed, `f` forfeited (it
is spent too), `o` overage. The names are short because they are written to the append-only file at each step.
"""

from __future__ import annotations

from dataclasses import dataclass

PERMANENT = ("watch", "clock", "log", "batches", "workers")
"""Keys without an end, besides `scope:global` and `scope:tenant:*`."""


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
    def clock(self) -> str:
        """When the tick last ran, and whether it is patient."""
        return f"{self.prefix}clock"

    @property
    def log(self) -> str:
        """The ledger's log."""
        return f"{self.prefix}log"

    @property
    def batches(self) -> str:
        """Names of batches by age."""
        return f"{self.prefix}batches"

    @property
    def workers(self) -> str:
        """Worker processes by the time until which they count as alive."""
        return f"{self.prefix}workers"

    def run(self, run_id: str, part: str = "") -> str:
        """A run's hash, or one of its parts: msgs, trace, cache, open, forfeits."""
        return f"{self.prefix}run:{run_id}{part and ':' + part}"

    def scope(self, scope: str) -> str:
        """A scope's account."""
        return f"{self.prefix}scope:{scope}"

    def batch(self, name: str, part: str = "") -> str:
        """A batch's hash, or one of its parts: ids, runs, open."""
        return f"{self.prefix}batch:{name}{part and ':' + part}"
