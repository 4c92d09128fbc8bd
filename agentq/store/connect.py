"""One connection pool, the namespace's keys, and the nouns that the store offers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import redis
from redis.backoff import ExponentialWithJitterBackoff, NoBackoff
from redis.retry import Retry

from agentq.core.errors import UnavailableError, UsageError
from agentq.core.urls import broker_url_for
from agentq.store.approvals import Approvals
from agentq.store.audit import Audit
from agentq.store.batches import Batches
from agentq.store.control import Control
from agentq.store.effects import Effects
from agentq.store.feeder import Feeder
from agentq.store.governor import Governor
from agentq.store.journal import Journal
from agentq.store.keys import Keys
from agentq.store.ledger import RECOVER_MS, Ledger
from agentq.store.notices import Notices
from agentq.store.results import Results
from agentq.store.runs import Runs
from agentq.store.schedules import Schedules
from agentq.store.scopes import Scopes
from agentq.store.scripts import Scripts
from agentq.store.watch import Watch

PING_SECONDS = 3.0
"""How long a person waits to hear that the server does not answer."""


@dataclass(frozen=True, slots=True)
class Store:
    """Everything that a namespace keeps."""

    client: redis.Redis
    keys: Keys
    runs: Runs
    ledger: Ledger
    journal: Journal
    audit: Audit
    scopes: Scopes
    batches: Batches
    watch: Watch
    effects: Effects
    approvals: Approvals
    control: Control
    results: Results
    governor: Governor
    feeder: Feeder
    schedules: Schedules
    notices: Notices

    def ping(self) -> None:
        """Return when the server answers.

        Raises:
            UnavailableError: when it does not.
        """
        kwargs = self.client.connection_pool.connection_kwargs | {
            "socket_timeout": PING_SECONDS,
            "retry": Retry(NoBackoff(), 0),
        }
        probe = self.client.connection_pool.connection_class(**kwargs)
        with reachable(self.client):
            try:
                probe.connect()
                probe.send_command("PING")
                probe.read_response()
            finally:
                probe.disconnect()

    def facts(self) -> ServerFacts:
        """What matters about the server, read at once.

        Raises:
            UnavailableError: when it cannot be reached.
        """
        with reachable(self.client):
            info = self.client.info()
            seconds, micros = self.client.time()
            here = time.time()  # noqa: TID251 - the very thing that is compared
        valkey = info.get("server_name") == "valkey"
        return ServerFacts(
            server="valkey" if valkey else "redis",
            version=str(info["valkey_version"] if valkey else info["redis_version"]),
            aof=bool(info.get("aof_enabled")),
            policy=str(info.get("maxmemory_policy", "")),
            role=str(info.get("role", "")),
            clock_ms_off=round((int(seconds) + int(micros) / 1e6 - here) * 1000),
        )


def connect(
    url: str,
    namespace: str,
    *,
    retries: int = 3,
    max_connections: int = 1024,
    recover_ms: int = RECOVER_MS,
) -> Store:
    """A store on `url`; nothing is sent yet.

    Every script may be called twice, so commands are replayed after a lost connection: `retries`
    times with up to 2 s between them (3 suit a person who waits, a worker holds out for longer).
    `recover_ms` is how long nothing is reserved after this process noticed that the server was rolled back.

    Raises:
        UsageError: when `url` is not the URL of a server.
    """
    broker_url_for(url)  # refuses, in words, what is no URL of a server
    if url.startswith("sentinel:"):
        raise UsageError("the state needs one Redis server; sentinel:// is for the broker only")
    over_tcp: dict[str, Any] = {"socket_keepalive": True, "socket_connect_timeout": 2}
    client = redis.Redis.from_url(
        url,
        decode_responses=True,
        **({} if url.startswith("unix:") else over_tcp),
        socket_timeout=5,
        max_connections=max_connections,
        retry=Retry(ExponentialWithJitterBackoff(base=0.05, cap=2), retries),
        retry_on_error=[redis.exceptions.ConnectionError, redis.exceptions.TimeoutError],
    )
    keys = Keys(namespace)
    scripts = Scripts(client, keys.prefix)
    ledger = Ledger(client, keys, scripts, recover_ms=recover_ms)
    journal = Journal(client, keys, scripts)
    return Store(
        client=client,
        keys=keys,
        runs=Runs(client, keys, scripts, ledger),
        ledger=ledger,
        journal=journal,
        audit=Audit(client, keys, scripts, journal),
        scopes=Scopes(client, keys, ledger),
        batches=Batches(client, keys, scripts),
        watch=Watch(client, keys, scripts, ledger),
        effects=Effects(scripts),
        approvals=Approvals(client, keys, scripts),
        control=Control(client, keys, scripts),
        results=Results(client, keys, scripts),
        governor=Governor(client, keys, scripts),
        feeder=Feeder(client, keys, scripts),
        schedules=Schedules(client, keys, scripts),
        notices=Notices(scripts),
    )


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What there is to say about the server."""

    server: str
    version: str
    aof: bool
    policy: str
    role: str
    clock_ms_off: int
    """The server's clock less this machine's, in milliseconds."""


_UNREACHABLE = (
    redis.exceptions.ConnectionError,
    redis.exceptions.TimeoutError,
    redis.exceptions.InvalidResponse,  # something answers, but it is not Redis
)


@contextmanager
def reachable(client: redis.Redis) -> Iterator[None]:
    """Turn a lost connection inside the block into an error for people.

    Raises:
        UnavailableError: naming the address, without its password, and what to check.
    """
    try:
        yield
    except _UNREACHABLE as error:
        raise UnavailableError(
            f"Redis cannot be reached at {address(client)}: {error}",
            hint="is it running? check --redis-url or AGENTQ_REDIS_URL; `agentq up` starts everything here",
        ) from error


def address(client: redis.Redis) -> str:
    """Where a client connects to, fit for people: no password."""
    kwargs = client.connection_pool.connection_kwargs
    if "path" in kwargs:
        return f"unix://{kwargs['path']}"
    return f"redis://{kwargs.get('host', 'localhost')}:{kwargs.get('port', 6379)}/{kwargs.get('db', 0) or 0}"
