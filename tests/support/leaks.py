"""A key that nobody will ever delete is a leak, unless it is on a list."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

import redis


def leaked_keys(client: redis.Redis, prefix: str, allowed: Iterable[str] = ()) -> list[str]:
    """The keys under `prefix` without a time to live, sorted, without the prefix.

    `allowed` are shell patterns of what may stay for ever, also without the prefix: `meta`, `scope:*`.
    """
    names = [key.decode() if isinstance(key, bytes) else key for key in client.scan_iter(count=1000)]
    mine = sorted(name for name in names if name.startswith(prefix))
    pipe = client.pipeline(transaction=False)
    for name in mine:
        pipe.ttl(name)
    patterns = tuple(allowed)
    endless = [name.removeprefix(prefix) for name, ttl in zip(mine, pipe.execute(), strict=True) if ttl == -1]
    return [name for name in endless if not any(fnmatchcase(name, pattern) for pattern in patterns)]


def assert_no_leaks(client: redis.Redis, prefix: str, allowed: Iterable[str] = ()) -> None:
    """Fail with the names of the leaked keys."""
    leaked = leaked_keys(client, prefix, allowed)
    assert not leaked, f"keys without a time to live under {prefix}: {', '.join(leaked)}"
