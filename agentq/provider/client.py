"""What the rest of agentq needs of a model: one method, and an optional second."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from agentq.provider.types import ChatRequest, ChatResult, Usage


@runtime_checkable
class LLMClient(Protocol):
    """A model that answers. It keeps nothing between calls: any worker may make the next one."""

    @property
    def provider(self) -> str:
        """The provider's name, for traces and errors."""

    @property
    def model(self) -> str:
        """The model's exact id: the key under which its price is looked up."""

    def complete(self, req: ChatRequest) -> ChatResult:
        """Make one call.

        Raises:
            LLMError: or a subclass, which says whether to try again and what may have been billed.
        """


@runtime_checkable
class Bounded(Protocol):
    """A client that knows its own worst case better than the general bound does."""

    def bound(self, req: ChatRequest) -> Usage:
        """The most that this call can use. It must hold: the difference to the real usage is overspent."""


def named(client: LLMClient) -> str:
    """A model for people: `provider/model`."""
    return f"{client.provider}/{client.model}"
