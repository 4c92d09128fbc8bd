"""Faults that ask for more than the official service: what other servers, and other models, refuse."""

# ruff: noqa: ARG001 - every fault is called with the same arguments

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from agentq.testing.provider.chat import too_long
from agentq.testing.provider.known import CHAT, OPENAI, Known
from agentq.testing.provider.refusal import invalid
from agentq.testing.provider.reply import sign
from agentq.testing.provider.request import Request

if TYPE_CHECKING:
    from agentq.testing.provider.fault import Fault

_MISTRAL_ID = re.compile(r"[a-zA-Z0-9]{9}")
GEMINI_KNOWS_NOT = frozenset(
    {
        "additionalProperties", "$schema", "$ref", "$defs", "exclusiveMinimum", "exclusiveMaximum",
        "uniqueItems", "const", "oneOf", "allOf", "not", "patternProperties", "propertyNames",
        "multipleOf", "examples",
    }
)  # fmt: skip
_DEEPEST = 32


def _assistants(request: Request) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for i, message in enumerate(request.body["messages"]):
        if message["role"] == "assistant":
            yield i, message


def _calls(request: Request) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The calls in a chat's history, each with where it stands."""
    for i, message in _assistants(request):
        for j, call in enumerate(message.get("tool_calls") or ()):
            yield f"messages[{i}].tool_calls[{j}]", call


def _no_effort_with_tools(request: Request, fault: Fault) -> None:
    if request.tools and request.body.get("reasoning_effort") != "none":
        raise invalid(
            f"Function tools with reasoning_effort are not supported for {request.model} in "
            "/v1/chat/completions. "
            "Please use /v1/responses or set reasoning_effort to 'none'.",
            param="reasoning_effort",
        )


def _reasoning_back(request: Request, fault: Fault) -> None:
    for _, message in _assistants(request):
        if message.get("tool_calls") and not message.get("reasoning_content"):
            raise invalid("The `reasoning_content` in the thinking mode must be passed back to the API.")


def thought_signature(call_id: str) -> str:
    """What Gemini gives with a call, and wants back."""
    return sign("thought", call_id)


def _thought_back(home: str) -> Callable[[Request, Fault], None]:
    def demand(request: Request, fault: Fault) -> None:
        for i, message in _assistants(request):
            for call in (message.get("tool_calls") or [])[:1]:  # of calls side by side the first has one
                extra = call.get("extra_content") or {}
                given = (extra.get(home) or {}).get("thought_signature")
                if given != thought_signature(call["id"]):
                    raise invalid(
                        "Function call is missing a thought_signature in functionCall parts: function "
                        "call "
                        f"`{call['function']['name']}`, position {i}."
                    )

    return demand


def _arguments_checked(request: Request, fault: Fault) -> None:
    for at, call in _calls(request):
        try:
            value = json.loads(call["function"]["arguments"])
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise invalid(f"{at}.function.arguments: the arguments are no JSON object")


def _no_parallel_switch(request: Request, fault: Fault) -> None:
    if "parallel_tool_calls" in request.body:
        raise _unsupported("parallel_tool_calls")


def _unsupported(name: str, instead: str = "") -> Exception:
    hint = f" Use '{instead}' instead." if instead else ""
    return invalid(
        f"Unsupported parameter: '{name}' is not supported with this model.{hint}",
        param=name,
        code="unsupported_parameter",
    )


def _no_parameter(name: str, instead: str = "") -> Callable[[Request, Fault], None]:
    def demand(request: Request, fault: Fault) -> None:
        if request.body.get(name) is not None:
            raise _unsupported(name, instead)

    return demand


def _no_empty_content(request: Request, fault: Fault) -> None:
    for i, message in enumerate(request.body["messages"]):
        if message.get("content") == "":
            raise invalid(f"messages.{i}: text content blocks must be non-empty")


def _no_null_content(request: Request, fault: Fault) -> None:
    for i, message in enumerate(request.body["messages"]):
        if message.get("content") is None:
            raise invalid(f"messages.{i}.content: Input should be a valid string")


def _ids_40(request: Request, fault: Fault) -> None:
    for at, call in _calls(request):
        if len(call["id"]) > 40:
            raise too_long(f"{at}.id", 40, len(call["id"]))


def _ids_mistral(request: Request, fault: Fault) -> None:
    for _, call in _calls(request):
        if not _MISTRAL_ID.fullmatch(call["id"]):
            raise invalid(
                f"Tool call id was {call['id']} but must be a-z, A-Z, 0-9, with a length of 9.",
                code="invalid_request_message_order",
            )


def _ids_unique(request: Request, fault: Fault) -> None:
    seen: set[str] = set()
    for at, call in _calls(request):
        if call["id"] in seen or not call["id"]:
            raise invalid(f"{at}.id: the id '{call['id']}' is empty or was used before")
        seen.add(call["id"])


def _plain_schemas(request: Request, fault: Fault) -> None:
    for i, tool in enumerate(request.tools):
        for key in sorted(_keys(tool.schema, 0)):
            if key in GEMINI_KNOWS_NOT:
                raise invalid(
                    f'Invalid JSON payload received. Unknown name "{key}" at '
                    f"'tools[0].function_declarations[{i}].parameters': Cannot find field."
                )


def _keys(schema: Any, depth: int) -> set[str]:
    if depth > _DEEPEST or not isinstance(schema, Mapping):
        return set()
    found = set(schema)
    inner = [*(schema.get("properties") or {}).values(), schema.get("items"), *(schema.get("anyOf") or ())]
    for value in inner:
        found |= _keys(value, depth + 1)
    return found


def _no_developer(request: Request, fault: Fault) -> None:
    for message in request.body["messages"]:
        if message["role"] == "developer":
            raise invalid(
                "Unexpected message role: developer. Supported roles: system, user, assistant, tool."
            )


def _system_first(request: Request, fault: Fault) -> None:
    for message in request.body["messages"][1:]:
        if message["role"] == "system":
            raise invalid("System message must be at the beginning.")


DEMANDS: dict[str, Known] = {
    "no_effort_with_tools": Known(
        says="tools are refused unless `reasoning_effort` is `none`",
        dialects=CHAT,
        demands=_no_effort_with_tools,
    ),
    "arguments_checked": Known(
        says="arguments in the history that are no JSON are refused",
        dialects=CHAT,
        demands=_arguments_checked,
    ),
    "no_parallel_switch": Known(
        says="`parallel_tool_calls` is refused, also false", dialects=OPENAI, demands=_no_parallel_switch
    ),
    "no_empty_content": Known(says='content "" is refused', dialects=CHAT, demands=_no_empty_content),
    "no_null_content": Known(says="content null is refused", dialects=CHAT, demands=_no_null_content),
    "ids_40": Known(
        says="ids of calls of more than 40 characters are refused", dialects=CHAT, demands=_ids_40
    ),
    "ids_unique": Known(
        says="an id of a call that is empty or was used before is refused", dialects=CHAT, demands=_ids_unique
    ),
    "plain_schemas": Known(
        says="a schema with keys that Gemini does not know is refused",
        dialects=OPENAI,
        demands=_plain_schemas,
    ),
    "no_max_tokens": Known(
        says="`max_tokens` is refused",
        dialects=CHAT,
        demands=_no_parameter("max_tokens", "max_completion_tokens"),
    ),
    "no_max_completion_tokens": Known(
        says="`max_completion_tokens` is refused",
        dialects=CHAT,
        demands=_no_parameter("max_completion_tokens"),
    ),
    "no_temperature": Known(says="`temperature` is refused", demands=_no_parameter("temperature")),
    "no_developer": Known(says="the role `developer` is refused", dialects=CHAT, demands=_no_developer),
    "system_first": Known(
        says="a system message that is not the first is refused", dialects=CHAT, demands=_system_first
    ),
}

REASONING_BACK = _reasoning_back
THOUGHT_BACK = _thought_back
IDS_MISTRAL = _ids_mistral
