"""The providers that `agentq doctor` looks at: those of the app's agents, else those that have a variable."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from agentq.core.errors import UsageError

if TYPE_CHECKING:
    from agentq.agent.agent import Agent
    from agentq.provider.httpmodel import HttpModel

ACCOUNTS_MAX = 20
"""How many accounts are asked: each takes up to five seconds."""
_BY_VARIABLE = {"OPENAI": "openai", "ANTHROPIC": "anthropic"}


def of_agents(agents: Mapping[str, Agent]) -> list[HttpModel]:
    """One model of each account and address that the agents and their fallbacks call, in their order."""
    from agentq.provider.httpmodel import HttpModel

    found: dict[tuple[str, str, str], HttpModel] = {}
    for agent in agents.values():
        for client in getattr(agent.client, "chain", (agent.client,)):
            if isinstance(client, HttpModel):
                found.setdefault((client.provider, client.base_url, client.key.source), client)
    return list(found.values())[:ACCOUNTS_MAX]


def of_variables() -> Iterator[HttpModel]:
    """A model of each provider for which the environment has a key or an address.

    Raises:
        UsageError: when an address is none.
    """
    from agentq.provider.errors import InvalidRequest
    from agentq.provider.resolve import ADAPTERS

    for prefix, dialect in _BY_VARIABLE.items():
        names = (f"{prefix}_API_KEY", f"{prefix}_API_KEY_FILE", f"{prefix}_BASE_URL")
        if any(os.environ.get(name, "").strip() for name in names):
            module, name = ADAPTERS[dialect]
            try:
                model: HttpModel = getattr(importlib.import_module(module), name)("any")
            except InvalidRequest as error:
                raise UsageError(f"{prefix}_BASE_URL: {error.message}") from error
            yield model
