"""The agents of an app: each is defined once, under the name that rows ask for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from agentq.agent.agent import Agent, OnAnswer, OnChange, OnOverflow
from agentq.agent.budgets import Budgets
from agentq.agent.loopdetect import LoopDetector
from agentq.app.installation import Installation
from agentq.core.errors import UsageError
from agentq.core.ids import check_name
from agentq.core.settings import check_on_exhausted
from agentq.core.words import nearest
from agentq.provider.bounds import TokenBounds
from agentq.provider.client import LLMClient
from agentq.provider.pricing import ModelPricing
from agentq.provider.resilient import ResilientClient, RetryPolicy
from agentq.provider.resolve import ADAPTERS, resolve_model
from agentq.tools import ToolExecutor, ToolRegistry
from agentq.tools.spec import OnUnknown

_DETECTOR = LoopDetector()


class Agents(Installation):
    """An installation in which agents are defined."""

    def agent(
        self,
        name: str,
        *,
        model: str | LLMClient,
        fallbacks: Sequence[str | LLMClient] = (),
        retry: RetryPolicy | None = None,
        base_url: str | None = None,
        api_key_file: str | None = None,
        provider: str | None = None,
        quirks: Mapping[str, Any] | None = None,
        model_options: Mapping[str, Any] | None = None,
        system: str = "",
        tools: Sequence[Any] = (),
        budgets: Budgets | None = None,
        output: Any = None,
        loop_detector: LoopDetector | None = _DETECTOR,
        max_tool_errors: int = 4,
        max_output_tokens: int = 2048,
        min_output_tokens: int | None = None,
        allowlist: Sequence[str] | None = None,
        pricing: Mapping[str, ModelPricing] | None = None,
        max_calls_per_step: int = 16,
        max_tool_bytes_per_step: int = 16_000,
        closing_seconds: float = 30.0,
        on_exhausted: str | None = None,
        key: str | None = None,
        on_denied: OnAnswer = "tell",
        on_expired: OnAnswer = "stop",
        on_unknown: OnUnknown = "tell",
        on_change: OnChange = "continue",
        context_window: int | None = None,
        on_overflow: OnOverflow = "stop",
    ) -> Agent:
        """Define an agent under a name that rows may ask for.

        Args:
            model: `openai:`, `openai-chat:` or `anthropic:` and a model's id, an object with
                `complete(ChatRequest)`, `scripted`, or `module:factory`.
            fallbacks: models that are asked in turn once the one before has failed as often as `retry` says,
                or in a way that no wait cures.
            retry: how often and how long each of them is tried; a single model 8 times, within the setting
                `patience_seconds`.
            base_url: where a provider's model is, in place of OPENAI_BASE_URL or ANTHROPIC_BASE_URL.
            api_key_file: a file with its key, in place of OPENAI_API_KEY or ANTHROPIC_API_KEY.
            provider: the name under which its prices are looked up, where the address does not say it.
            quirks: what this model wants otherwise than known, as `{"output_cap": "max_tokens"}`.
            model_options: added to each request as it is, as `{"reasoning": {"effort": "low"}}`. These five
                are of `model`; a fallback that needs its own is given as an object.
            budgets: what each of its runs may spend; what they do not name is as the settings say.
            loop_detector: the thresholds of each run's detector; None switches it off.
            min_output_tokens: the least output that a step may be cut to when money is short; None: an eighth
                of max_output_tokens, but not under 256; equal to max_output_tokens: never cut. A client's own
                `bound` is asked for each of at most four sizes of a step, and for the closing turn after it.
            tools: functions with `@tool`, and servers as `agentq.tools.mcp.MCPServer(…)`.
            allowlist: the tools that it may see and use; None for all of `tools`.
            max_tool_bytes_per_step: of all results of a step together. A run sets the worst case of so much
                aside for its closing turn: with a client that has no `bound`, four tokens a byte.
            closing_seconds: the deadline of the closing turn.
            on_exhausted: what its runs do when a scope around them is dry: `park`, `stop` or `winddown`; by
                default as the setting says. What is set on the scope itself goes before it.
            key: the name of the provider's account that pays; its runs are in the scope `key:<name>` too.
            on_denied: a call that a person refuses is told to the model (`tell`), or ends the run (`stop`).
            on_expired: the same for one on which nobody decides in time.
            on_unknown: when nobody knows whether a call with a side effect has acted: `tell` the model, or
                `ask` a person whether to make it again. A tool's own goes before it.
            on_change: a worker with another definition of the agent than the run has met may go on with it
                (`continue`), leave it to workers that have the old one (`pin`), or close it (`finish`).
            output: a pydantic model of an object. A final answer must be JSON of it: one that is not is sent
                back once, and then the run ends as `output_invalid`.
            context_window: how many tokens a call may have, input and output together; None: as the price of
                the model says, and not checked where that says nothing.
            on_overflow: a run whose next call would be longer ends as `context_overflow` (`stop`), or has its
                oldest turns summed up by a call of its model (`compact`).

        Raises:
            UsageError: when the name is taken, the model cannot be had, the allowlist names no tool of it, or
                the output is no such model.
        """
        check_name("agent", name)
        if name in self.agents:
            raise UsageError(f"there is an agent {name!r} already")
        registry = ToolRegistry(tools)
        for allowed in allowlist or ():
            if not registry.may_have(allowed):
                raise UsageError(
                    f"agent {name!r}: its allowlist names {allowed!r}, which is none of its tools"
                    f"{nearest(allowed, registry.own_names())}"
                )
        self.agents[name] = Agent(
            self._client(
                model,
                fallbacks,
                retry,
                base_url=base_url,
                api_key_file=api_key_file,
                provider=provider,
                quirks=quirks,
                options=model_options,
            ),
            ToolExecutor(registry),
            name=name,
            system=system,
            budgets=self.run_limits if budgets is None else budgets.over(self.run_limits),
            pricing=self.pricing | dict(pricing or {}),
            allowlist=allowlist,
            max_tool_errors=max_tool_errors,
            max_output_tokens=max_output_tokens,
            min_output_tokens=min_output_tokens,
            loop_detector=loop_detector,
            max_calls_per_step=max_calls_per_step,
            max_tool_bytes_per_step=max_tool_bytes_per_step,
            closing_seconds=closing_seconds,
            on_exhausted=None if on_exhausted is None else check_on_exhausted(on_exhausted),
            key=None if key is None else check_name("key", key),
            on_denied=on_denied,
            on_expired=on_expired,
            on_unknown=on_unknown,
            on_change=on_change,
            output=output,
            context_window=context_window,
            on_overflow=on_overflow,
            token_bounds=cast("TokenBounds", self.settings.token_bounds),
        )
        return self.agents[name]

    def _client(
        self,
        model: str | LLMClient,
        fallbacks: Sequence[str | LLMClient],
        retry: RetryPolicy | None,
        **options: Any,
    ) -> LLMClient:
        primary = resolve_model(model, **options, **self._call_seconds(model))()
        if not fallbacks and retry is None:
            return primary
        following = [resolve_model(link, **self._call_seconds(link))() for link in fallbacks]
        return ResilientClient(primary, following, policy=retry)

    def _call_seconds(self, model: str | LLMClient) -> dict[str, float]:
        is_http = isinstance(model, str) and model.partition(":")[0] in ADAPTERS
        return {"call_seconds": self.settings.call_timeout_seconds} if is_http else {}
