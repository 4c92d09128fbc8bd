"""A line of a batch for Anthropic: `custom_id, params`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentq.engine.input.batchline import agent_of_call, body_of, call_of, fields_of
from agentq.engine.input.content import as_input, messages_of, text_of

_KEYS = ("custom_id", "params")
_ROLES = {"user": "user", "assistant": "assistant"}


def anthropic_line(
    value: Mapping[str, Any], with_agent: bool
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The fields of its row, and what it sends beside its messages unless an agent does the work.

    Args:
        with_agent: an agent is named for all rows; the line may name one too.

    Raises:
        ValueError: for what cannot be run.
    """
    fields = fields_of(value, _KEYS)
    params = body_of(value, "params")
    exact = not (with_agent or fields.get("agent"))
    messages = messages_of(params.get("messages"), "params.messages", roles=_ROLES, exact=exact)
    system = params.get("system")
    if system and (text := text_of(system, "'params.system'", exact=exact)):
        messages.insert(0, {"role": "system", "content": text})
    fields["input"] = as_input(messages)
    if not exact:
        return fields, {"dialect": "anthropic"}
    call = call_of("anthropic", params, "params", ("messages", "system"))
    fields["agent"] = agent_of_call(call)
    return fields, call
