"""One call of the command line: what was chosen, and the app that it is about."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentq.cli.console import Console
from agentq.core.errors import UnavailableError, UsageError
from agentq.core.settings import Settings, load_settings
from agentq.core.urls import broker_url_for
from agentq.worker.upfile import UpFile, UpState

if TYPE_CHECKING:
    from agentq.app import AgentQ


class Session:
    """The global options, wherever they stood, and what follows from them."""

    def __init__(self) -> None:
        self.console = Console()
        self.verbosity = 0
        self._app_path = ""
        self._redis_url = ""
        self._app: AgentQ | None = None

    def choose(self, name: str, value: Any) -> None:
        """Take one global option. Settings go to the environment, where worker processes find them too."""
        match name:
            case "app":
                self._app_path = value
            case "redis_url" | "namespace":
                os.environ[f"AGENTQ_{name.upper()}"] = value
                self._redis_url = value if name == "redis_url" else self._redis_url
            case "verbose":
                self.verbosity = value
            case _:
                setattr(self.console, name, value)

    @property
    def settings(self) -> Settings:
        """The settings as they stand without an app."""
        return load_settings({})

    @property
    def app_path(self) -> str:
        """`module:app` from `-A`, the settings or the `agentq up` of this folder; empty when nobody says."""
        if self._app_path:
            return self._app_path
        up = self.up
        return self.settings.app or (up.app if up else "")

    @property
    def up(self) -> UpState | None:
        """The `agentq up` that runs in this folder."""
        return UpFile(Path(self.settings.home)).read()

    def user_app(self, verb: str) -> AgentQ:
        """The app that knows the agents.

        Raises:
            UsageError: when nobody says which it is.
        """
        if not self.app_path:
            raise UsageError(
                f"agentq {verb} needs your agents: name the AgentQ object as module:app",
                hint=f"agentq {verb} -A agents:app, or set AGENTQ_APP",
            )
        return self.any_app()

    def any_app(self) -> AgentQ:
        """The app, or one without agents that sees the same server and namespace."""
        if self._app is None:
            self._app = self._load()
        return self._app

    def _load(self) -> AgentQ:
        if self.app_path:
            from agentq.cli.appref import load_app

            app = load_app(self.app_path)
            self._refuse_other_server(app)
            return app
        from agentq.app import AgentQ

        up = self.up
        return AgentQ(up.namespace if up else "agentq")

    def server_app(self) -> AgentQ:
        """An app that sees the server, and the server answers. It may be without agents.

        Beside a running `agentq up` nothing of the user's is imported, unless it is named: what imports in
        the terminal of `up`, with its keys and its environment, may not import in this one.

        Raises:
            UnavailableError: when there is none, or it does not answer.
        """
        if self._app is None and not self._app_path and not self.settings.app and self.up is not None:
            from agentq.app import AgentQ

            self._app = AgentQ(self.up.namespace)
        app = self.any_app()
        self.need_server(app)
        app.ping()
        return app

    def need_server(self, app: AgentQ) -> None:
        """Check that there is a server to talk to.

        Raises:
            UnavailableError: when nobody names one.
            UsageError: when what is named is no URL of a server.
        """
        if app.settings.redis_url is None:
            raise UnavailableError(
                f"no state server: AGENTQ_REDIS_URL is not set and no agentq up runs in {app.settings.home}",
                hint="agentq up starts one, --redis-url names one",
            )
        broker_url_for(app.settings.redis_url)

    def _refuse_other_server(self, app: AgentQ) -> None:
        if self._redis_url and app.settings.redis_url != self._redis_url:
            raise UsageError(
                f"{self.app_path} fixes its own redis_url, so --redis-url cannot choose another",
                hint="leave redis_url out of the code and set it with AGENTQ_REDIS_URL or --redis-url",
            )
