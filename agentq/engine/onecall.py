"""A line of a provider's batch file that no agent takes: a run of its own model, which is this one call.

Its agent is made when it is needed, by whoever submits the line and by each worker, and kept for the lines
like it. Models are kept apart from agents: lines that differ only in their options share connections.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, cast

from agentq.agent.agent import Agent
from agentq.agent.budgets import Budgets
from agentq.core.errors import UsageError
from agentq.provider.bounds import TokenBounds
from agentq.provider.catalogue import price_of
from agentq.provider.httpmodel import CALL_SECONDS, HttpModel
from agentq.provider.openai_responses import LEAST_OUTPUT_TOKENS
from agentq.provider.pricing import Pricing
from agentq.provider.resolve import ADAPTERS, resolve_model
from agentq.tools import ToolExecutor, ToolRegistry

AGENTS_KEPT = 256
MODELS_KEPT = 64
OPTIONS_KEPT_CHARS = 16_384
"""Longer options, perhaps of one line each, are read again for each step."""
OUTPUT_TOKENS = 4_096
"""The cap on the answer of a line that names none; at most half of its model's window."""
LARGE_OUTPUT_TOKENS = 16_384
"""The same where the window is `LARGE_WINDOW` or more: such models may think before they answer."""
LARGE_WINDOW = 200_000

_CAPS = {
    "openai-chat": ("max_completion_tokens", "max_tokens"),
    "openai": ("max_output_tokens",),
    "anthropic": ("max_tokens",),
}
"""What a body calls its cap, the name that goes before the other first."""
_AS_EVER = {"n": 1, "stream": False, "background": False, "tools": []}
"""Options that say what holds without them; `null` is the same of any."""
_TIERS = frozenset({"auto", "default", "flex", "standard_only"})
_ELSEWHERE = frozenset(
    {"web_search_options", "audio", "mcp_servers", "container", "speed", "inference_geo"}
)  # fmt: skip
"""Options whose price depends on more than tokens of text, or is not in the list of prices."""
_MODEL = re.compile(r"[!-~]{1,200}")
_NOTHING_FOLLOWS = {"reasons": False, "keeps_turns": False}
"""No thoughts are asked for, or kept, in order to be sent back."""
_BUDGETS = Budgets(max_steps=1, max_tokens=None, max_usd=None, max_seconds=None)


class OneCalls:
    """The agents of batch lines, by model and options.

    Args:
        pricing: the prices of the installation.
        call_seconds: the longest that one call may take.
        token_bounds: as in the settings.
    """

    def __init__(
        self,
        pricing: Pricing,
        *,
        call_seconds: float = CALL_SECONDS,
        token_bounds: TokenBounds = "strict",  # noqa: S107 - of words, not of access
    ) -> None:
        self._pricing = pricing
        self._call_seconds = call_seconds
        self._token_bounds = token_bounds
        self._executor = ToolExecutor(ToolRegistry([]))
        self._model = lru_cache(maxsize=MODELS_KEPT)(self._make_model)
        self._agent = lru_cache(maxsize=AGENTS_KEPT)(self._make_agent)

    def agent(self, call: Mapping[str, Any]) -> Agent:
        """The agent of such a line.

        Args:
            call: `dialect` (openai-chat, openai or anthropic), `model`, and `options`: the body without its
                model and messages.

        Raises:
            UsageError: when the call cannot be made, or the most that it may cost cannot be known.
        """
        dialect, model = call.get("dialect"), call.get("model")
        if dialect not in ADAPTERS:
            raise UsageError(
                f"there is no dialect {dialect!r} of batch lines: they are {', '.join(ADAPTERS)}"
            )
        if not isinstance(model, str) or not _MODEL.fullmatch(model) or model.endswith(("@day", "@month")):
            raise UsageError(f"{model!r} is not the id of a model: up to 200 characters without spaces")
        options = json.dumps(call.get("options") or {}, sort_keys=True, separators=(",", ":"))
        make = self._agent if len(options) <= OPTIONS_KEPT_CHARS else self._make_agent
        return make(dialect, model, options)

    def _make_model(self, dialect: str, model: str) -> HttpModel:
        client = resolve_model(
            f"{dialect}:{model}", call_seconds=self._call_seconds, quirks=_NOTHING_FOLLOWS
        )()
        return cast("HttpModel", client)

    def _make_agent(self, dialect: str, model: str, encoded: str) -> Agent:
        options = {
            name: value
            for name, value in json.loads(encoded).items()
            if value is not None and not (name in _AS_EVER and value == _AS_EVER[name])
        }
        for name, value in options.items():
            _refuse_unpriced(name, value)
        given = _cap(dialect, options)
        plain = self._model(dialect, model)
        for name in sorted(options.keys() & plain.own_keys):
            raise UsageError(
                f"{name!r} cannot be set by a line that is a run of its own",
                hint="leave it out, or name an agent with --agent: it takes the line's messages only",
            )
        client = plain.with_options(options)
        cap = given or self._default_cap(client)
        return Agent(
            client,
            self._executor,
            name=f"{dialect}:{model}",
            budgets=_BUDGETS,
            pricing=self._pricing,
            max_output_tokens=cap,
            min_output_tokens=cap,  # an answer that is cut to less than was asked for is another answer
            loop_detector=None,
            token_bounds=self._token_bounds,
            one_call=True,
        )

    def _default_cap(self, client: HttpModel) -> int:
        price = price_of(self._pricing, client.model, client.provider)
        if price is None or not price.context_window:
            return OUTPUT_TOKENS
        if price.context_window >= LARGE_WINDOW:
            return LARGE_OUTPUT_TOKENS
        return max(1, min(OUTPUT_TOKENS, price.context_window // 2))


def _cap(dialect: str, options: dict[str, Any]) -> int | None:
    """Take the cap on the answer out of the options; None where there is none."""
    found = [(name, options.pop(name)) for name in _CAPS[dialect] if name in options]
    if not found:
        return None
    name, cap = found[0]
    least = LEAST_OUTPUT_TOKENS if dialect == "openai" else 1
    if isinstance(cap, bool) or not isinstance(cap, int) or cap < least:
        raise UsageError(f"{name!r} is a whole number of tokens, at least {least}, not {cap!r}")
    return cap


def _refuse_unpriced(name: str, value: Any) -> None:
    """Return when tokens of text and their list price say what the option costs."""
    if (
        name in _ELSEWHERE
        or (name == "service_tier" and value not in _TIERS)
        or (name == "modalities" and value != ["text"])
        or (name == "cache_control" and isinstance(value, dict) and value.get("ttl") == "1h")
    ):
        raise UsageError(
            f"{name!r}: {json.dumps(value)[:80]} has a price of its own, so no limit in USD would hold",
            hint="leave it out, or name an agent whose model_options have it",
        )
