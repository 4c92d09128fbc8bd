"""What an app stands on: its settings, the state, the Celery app, and what a worker has at hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from agentq.agent.agent import Agent
from agentq.agent.budgets import Budgets
from agentq.core.errors import UnavailableError, UsageError
from agentq.core.ids import check_name
from agentq.core.settings import Settings, load_settings
from agentq.core.words import nearest
from agentq.engine.leases import Leases
from agentq.engine.workbench import Dispatch, MakeHint, Workbench
from agentq.provider.catalogue import known_prices
from agentq.provider.pricing import ModelPricing
from agentq.store.connect import Store, connect
from agentq.worker.upfile import UpFile

if TYPE_CHECKING:
    from celery import Celery

    from agentq.engine.onecall import OneCalls
    from agentq.provider.bounds import TokenBounds

BROKER_SECONDS = 5
WORKER_RETRIES = 30
"""How often a worker repeats a command that a lost connection swallowed: about a minute."""


def _beside_up(settings: Settings) -> Settings:
    """Without a server of its own, an app uses the one of the `agentq up` that runs in its home."""
    up = None if settings.redis_url else UpFile(Path(settings.home)).read()
    if up is None:
        return settings
    return replace(settings, redis_url=up.redis_url, broker_url=settings.broker_url or up.broker_url)


class Installation:
    """A namespace in Redis, the Celery app over it, and the agents that its workers know."""

    def __init__(
        self, name: str = "agentq", *, pricing: Mapping[str, ModelPricing] | None = None, **settings: Any
    ) -> None:
        self.name = check_name("app", name)
        self.settings = _beside_up(load_settings(settings, namespace=name))
        self.run_limits = Budgets(**self.settings.run_limits)
        self.pricing = known_prices(pricing, self.settings.prices_file)
        self.agents: dict[str, Agent] = {}

    @cached_property
    def store(self) -> Store:
        """The state. Connected at the first command.

        Raises:
            UnavailableError: when no server is configured.
        """
        return self._connect(retries=3)

    def _connect(self, retries: int) -> Store:
        if self.settings.redis_url is None:
            raise UnavailableError(
                "no Redis is configured",
                hint="set AGENTQ_REDIS_URL, or start everything here with `agentq up`",
            )
        # After a rollback each worker has a lease and a heartbeat to say what it holds.
        recover_ms = self.settings.lease_ms * 4 // 3
        return connect(
            self.settings.redis_url, self.settings.namespace, retries=retries, recover_ms=recover_ms
        )

    @cached_property
    def celery(self) -> Celery:
        """The Celery app: `celery = app.celery` in a module makes `celery -A module:celery worker` work."""
        # Whoever only looks at what there is needs no Celery, which takes a while to import; likewise below.
        from agentq.worker.background import add_background
        from agentq.worker.celery_app import make_celery
        from agentq.worker.tasks import register_step

        celery = make_celery(self.name, self.settings)
        register_step(celery, lambda: self.bench)
        add_background(
            celery,
            lambda: self.bench,
            tick_seconds=self.settings.tick_seconds,
            drain_seconds=self.settings.drain_seconds,
            heartbeat_file=Path(file) if (file := self.settings.heartbeat_file) else None,
            chores=self._chores,
        )
        return celery

    def _chores(self) -> Mapping[str, Callable[[], None]]:
        """What workers do beside the steps, by name."""
        return {}

    @cached_property
    def dispatch(self) -> Dispatch:
        """How a hint is sent."""
        from agentq.worker.tasks import make_dispatch

        return make_dispatch(self.celery)

    @cached_property
    def make_hint(self) -> MakeHint:
        """What makes the hints that scripts send by themselves."""
        from agentq.worker.hints import hint_maker

        return hint_maker(self.celery, self.settings)

    @cached_property
    def bench(self) -> Workbench:
        """What a worker's steps have at hand."""
        store = self._connect(retries=WORKER_RETRIES)
        leases = Leases(
            store.watch,
            lease_ms=self.settings.lease_ms,
            longest_seconds=2 * self.settings.call_timeout_seconds,
        )
        return Workbench(
            store=store,
            agents=self.agents,
            leases=leases,
            dispatch=self.dispatch,
            make_hint=self.make_hint,
            lease_ms=self.settings.lease_ms,
            approval_ms=round(self.settings.approval_seconds * 1000),
            park_ms=self.settings.park_ms,
            patience_seconds=self.settings.patience_seconds,
            on_unpriced=self.settings.on_unpriced,
            scopes=self.settings.optional_scopes,
            run_limits=self.run_limits,
            one_call=self._one_call,
        )

    @cached_property
    def one_calls(self) -> OneCalls:
        """The agents of batch lines that no agent of this app takes: runs of their own model."""
        from agentq.engine.onecall import OneCalls  # brings an HTTP client

        return OneCalls(
            self.pricing,
            call_seconds=self.settings.call_timeout_seconds,
            token_bounds=cast("TokenBounds", self.settings.token_bounds),
        )

    def _one_call(self, call: Mapping[str, Any]) -> Agent:
        return self.one_calls.agent(call)

    def agent_for(self, name: str, call: Mapping[str, Any]) -> Agent:
        """The agent of a row: that of its own call where it is one, else the one of this name.

        Raises:
            UsageError: when there is no such agent, or its call cannot be made.
        """
        if "model" in call:
            return self.one_calls.agent(call)
        if name not in self.agents:
            known = ", ".join(sorted(self.agents)) or "none"
            raise UsageError(
                f"there is no agent {name!r}{nearest(name, self.agents)}", hint=f"this app has {known}"
            )
        return self.agents[name]

    def ping(self) -> None:
        """Return when the state server answers.

        Raises:
            UnavailableError: when it does not, within seconds.
        """
        self.store.ping()

    def ping_broker(self) -> str:
        """Return the broker's address when it answers.

        Raises:
            UnavailableError: when it does not, within seconds.
        """
        from kombu.exceptions import KombuError

        with self.celery.connection_for_write() as connection:
            where = str(connection.as_uri())
            refused: tuple[type[BaseException], ...] = (*connection.connection_errors, OSError, KombuError)
            try:
                connection.ensure_connection(max_retries=1, timeout=BROKER_SECONDS)
            except refused as error:
                raise UnavailableError(
                    f"the broker cannot be reached at {where}: {error}",
                    hint="check AGENTQ_BROKER_URL and that it runs",
                ) from error
        return where

    def workers(self) -> list[str]:
        """The worker processes that are alive."""
        return self.store.watch.workers()

    def doctor_facts(self) -> dict[str, Any]:
        """What `agentq doctor` judges: server, version, aof, policy, role, clock_ms_off, workers."""
        return asdict(self.store.facts()) | {"workers": self.workers()}
