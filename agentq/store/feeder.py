"""The feeder's knobs and gauges: who takes turns, and how much may be in flight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import redis

from agentq.core.records import TenantRecord
from agentq.store.keys import Keys
from agentq.store.scripts import Arg, Scripts, unexpected


class Feeder:
    """How rows of one namespace become runs. That happens in the scripts: see `lua/_feeder.lua`."""

    def __init__(self, client: redis.Redis, keys: Keys, scripts: Scripts) -> None:
        self._client = client
        self._keys = keys
        self._scripts = scripts

    def tune(self, tenant: str, knobs: Mapping[str, int | None]) -> None:
        """Set `max` and `weight` of a tenant, or for `""` `max` and `tenant_max` of all; None removes one."""
        flat: list[Arg] = []
        for name, value in knobs.items():
            flat += [name, "" if value is None else value]
        reply = self._scripts.call("feeder_tune", tenant, len(flat), *flat)
        if reply != ["OK"]:
            raise unexpected("feeder_tune", reply)

    def window(self) -> int:
        """How many runs may be in flight together; a tenant without any has one more."""
        window, most = self._client.hmget(self._keys.feeder, ["window", "max"])
        return min(int(window or 0), int(most)) if most else int(window or 0)

    def in_flight(self) -> int:
        """How many runs are queued and due, or running."""
        return int(self._client.scard(self._keys.slots))

    def caps(self) -> tuple[int | None, int | None]:
        """The most in flight of all, and of each tenant without a cap of its own; None: no cap."""
        most, each = self._client.hmget(self._keys.feeder, ["max", "tenant_max"])
        return None if most is None else int(most), None if each is None else int(each)

    def waiting(self) -> Counter[str]:
        """Each tenant that has a batch, and how many rows of its batches are no runs yet."""
        names = [str(name) for name in self._client.zrange(self._keys.batches, 0, -1)]
        pipeline = self._client.pipeline(transaction=False)
        for name in names:
            pipeline.hget(self._keys.batch(name), "tenant")
            pipeline.zcard(self._keys.batch(name, "feed"))
            pipeline.zcard(self._keys.batch(name, "loading"))
        replies = pipeline.execute()
        waiting: Counter[str] = Counter()
        for tenant, fed, loading in zip(replies[::3], replies[1::3], replies[2::3], strict=True):
            if tenant is not None:
                waiting[str(tenant)] += fed + loading
        return waiting

    def tenants(self) -> list[TenantRecord]:
        """Those with something in flight, with rows that take turns, or with a knob of their own; by name."""
        fields: Mapping[str, str] = self._client.hgetall(self._keys.feeder)  # type: ignore[assignment]
        named = {name.partition(":")[2] for name in fields if name.startswith(("max:", "weight:"))}
        names = named | {str(name) for name in self._client.smembers(f"{self._keys.prefix}flying")}
        names |= {str(name) for name in self._client.zrange(self._keys.turns(), 0, -1)}
        ordered = sorted(names)
        pipeline = self._client.pipeline(transaction=False)
        for name in ordered:
            pipeline.scard(self._keys.slots_of("t", name))
            pipeline.zcard(self._keys.turns(name))
        replies = pipeline.execute()
        return [
            TenantRecord(
                name=name,
                in_flight=in_flight,
                batches=batches,
                weight=int(fields.get(f"weight:{name}", 1)),
                max_in_flight=int(fields[f"max:{name}"]) if f"max:{name}" in fields else None,
            )
            for name, in_flight, batches in zip(ordered, replies[::2], replies[1::2], strict=True)
        ]
