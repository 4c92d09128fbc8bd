"""The scopes that have an account, as a tree: who is in whom, their windows, who waits for their money."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import redis

from agentq.core.records import Account
from agentq.store.keys import Keys
from agentq.store.ledger import Ledger

WINDOWS = {"day": "%Y-%m-%d", "month": "%Y-%m"}
RUNS_MAX = 1_000
"""The most runs, and children of runs, that are read for one tree."""
_OF_NO_RUN = "[gtamkb]*"
"""global, tenant, agent, model, key and batch: what is left out are the accounts of runs, by far the most."""


@dataclass(slots=True)
class Node:
    """One scope, or one of its windows, and what is in it."""

    account: Account
    """Of a window: that of the day or month, with the limits of all of them; `scope` is `tenant:acme@day`."""
    parked: int = 0
    period: str = ""
    """The day or month of a window: `2026-11-29`."""
    windows: list[Node] = field(default_factory=list)
    children: list[Node] = field(default_factory=list)
    left_out: int = 0
    """Children that are not shown."""


class Scopes:
    """What there is to see of the scopes of one namespace."""

    def __init__(self, client: redis.Redis, keys: Keys, ledger: Ledger) -> None:
        self._client = client
        self._keys = keys
        self._ledger = ledger

    def exists(self, scope: str) -> bool:
        """Whether a scope has an account."""
        return bool(self._client.exists(self._keys.scope(scope)))

    def has_subject(self, scope: str) -> bool:
        """Whether there is such a run or batch; anything else may be given money before it is ever used."""
        kind, _, name = scope.partition(":")
        match kind:
            case "run":
                return bool(self._client.exists(self._keys.run(name)))
            case "batch":
                return bool(self._client.exists(self._keys.batch(name)))
            case _:
                return True

    def names(self) -> Iterator[str]:
        """All scopes with an account, but for runs and windows. Looks at every key of the server."""
        prefix = self._keys.scope("")
        for key in self._client.scan_iter(match=f"{prefix}{_OF_NO_RUN}", count=5_000):
            name = str(key).removeprefix(prefix)
            if not any(f"@{kind}:" in name or name.endswith(f"@{kind}") for kind in WINDOWS):
                yield name

    def parked(self, scope: str) -> int:
        """How many runs wait for money of a scope, or of its windows."""
        pipeline = self._client.pipeline(transaction=False)
        for place in places(scope):
            pipeline.zcard(self._keys.parked(place))
        return sum(pipeline.execute())

    def node(self, scope: str) -> Node:
        """A scope with its windows; or a window, also one that is over: `tenant:acme@day:2026-11-28`."""
        base, kind, period = split(scope)
        if not kind:
            return self._nodes([scope])[0]
        return self._windows([(base, kind)], period)[0]

    def tree(self, scope: str = "global", *, runs: bool = False) -> Node:
        """A scope and what is in it: global has all tenants, a tenant its batches.

        Args:
            scope: the root.
            runs: a batch has its runs and a run its children too, up to 1,000 of them.
        """
        kind = scope.partition(":")[0]
        if kind not in {"global", "tenant"} or split(scope)[1]:
            root = self.node(scope)
            if runs:
                self._add_runs([root])
            return root
        if kind == "tenant":
            batches = [f"batch:{name!s}" for name in self._client.zrange(self._keys.batches, 0, -1)]
            owners = self._owners(batches)
            mine = [batch for batch in batches if owners[batch] == scope]
            root, *found = self._nodes([scope, *mine])
            root.children = found
        else:
            root, found = self._everything()
        if runs:
            self._add_runs(found)
        return root

    def _everything(self) -> tuple[Node, list[Node]]:
        """The whole tree without runs, and the batches in it."""
        names = {"global", *self.names()}
        owners = self._owners([name for name in names if name.startswith("batch:")])
        names |= set(owners.values())
        nodes = {node.account.scope: node for node in self._nodes(sorted(names))}
        for name, node in nodes.items():
            if name != "global":
                nodes[owners.get(name, "global")].children.append(node)
        return nodes["global"], [nodes[batch] for batch in owners]

    def _owners(self, batches: Sequence[str]) -> dict[str, str]:
        """Batch to the tenant that it belongs to."""
        pipeline = self._client.pipeline(transaction=False)
        for batch in batches:
            pipeline.hget(self._keys.batch(batch.partition(":")[2]), "tenant")
        tenants = pipeline.execute()
        return {
            batch: f"tenant:{tenant}" if tenant else "global"
            for batch, tenant in zip(batches, tenants, strict=True)
        }

    def _nodes(self, scopes: Sequence[str]) -> list[Node]:
        """These scopes with their windows, all accounts as they stand at one instant but for the windows."""
        pipeline = self._client.pipeline(transaction=False)
        for scope in scopes:
            pipeline.zcard(self._keys.parked(scope))
        parked = pipeline.execute()
        nodes = [
            Node(account, count) for account, count in zip(self._ledger.accounts(scopes), parked, strict=True)
        ]
        by_scope = {node.account.scope: node for node in nodes}
        pairs = [
            (node.account.scope, kind) for node in nodes for kind in WINDOWS if kind in node.account.words
        ]
        for (scope, _), window in zip(pairs, self._windows(pairs) if pairs else (), strict=True):
            by_scope[scope].windows.append(window)
        return nodes

    def _windows(self, pairs: Sequence[tuple[str, str]], period: str = "") -> list[Node]:
        """These windows (scope and kind), the running ones unless a period is given."""
        seconds, _ = self._client.time()
        now = datetime.fromtimestamp(int(seconds), UTC)
        periods = [period or now.strftime(WINDOWS[kind]) for _, kind in pairs]
        lists = [f"{scope}@{kind}" for scope, kind in pairs]
        accounts = self._ledger.accounts([f"{name}:{at}" for name, at in zip(lists, periods, strict=True)])
        limits = self._ledger.accounts(lists)
        nodes = []
        for name, at, account, limit in zip(lists, periods, accounts, limits, strict=True):
            whole = replace(
                account,
                scope=name,
                limit_nano=limit.limit_nano,
                tokens_limit=limit.tokens_limit,
                words=limit.words,
            )
            nodes.append(Node(whole, int(self._client.zcard(self._keys.parked(name))), at))
        return nodes

    def _add_runs(self, nodes: Sequence[Node]) -> None:
        """Hang the runs of batches, and the children of runs, below them, level by level."""
        room, level = RUNS_MAX, list(nodes)
        while level:
            following: list[Node] = []
            for node in level:
                kind, _, name = node.account.scope.partition(":")
                if kind == "batch":
                    runs = self._client.lrange(self._keys.batch(name, "runs"), 0, -1)
                elif kind == "run":
                    started = self._client.hvals(self._keys.run(name, "children"))
                    runs = [str(text).split()[-1] for text in started]
                else:
                    continue
                shown = runs[:room]
                room -= len(shown)
                node.left_out = len(runs) - len(shown)
                node.children = self._nodes([f"run:{run!s}" for run in shown]) if shown else []
                following += node.children
            level = following


def split(scope: str) -> tuple[str, str, str]:
    """A scope, its window's kind or nothing, and the day or month or nothing."""
    for kind in WINDOWS:
        base, mark, period = scope.rpartition(f"@{kind}")
        if mark and (not period or period.startswith(":")):
            return base, kind, period.removeprefix(":")
    return scope, "", ""


def places(scope: str) -> list[str]:
    """Where runs wait for money of a scope: in its own list and in those of its windows."""
    return [scope] if split(scope)[1] else [scope, *(f"{scope}@{kind}" for kind in WINDOWS)]
