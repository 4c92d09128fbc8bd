"""The five gates before a tool: it exists, is allowed, has JSON arguments, they fit, it is approved.

A refusal is written for the model: what is wrong, and what to do instead. With an allowlist, the names of
other tools appear nowhere.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from pydantic import BaseModel, ValidationError

from agentq.tools.context import CallContext
from agentq.tools.idempotency import call_signature
from agentq.tools.registry import ToolRegistry
from agentq.tools.result import ToolResult
from agentq.tools.spec import ToolSpec

_SHOWN_ERRORS = 5


@dataclass(frozen=True, slots=True)
class Admitted:
    """A call that passed the gates. `arguments` are checked, by the function's own names."""

    spec: ToolSpec
    arguments: Mapping[str, Any]
    signature: str


def admit(
    registry: ToolRegistry,
    name: str,
    arguments: str,
    ctx: CallContext,
    *,
    allowlist: Sequence[str] | None = None,
    cache: Mapping[str, str] | None = None,
    approved: bool = False,
) -> Admitted | ToolResult:
    """The admitted call, or the result that takes its place: a refusal, or what the cache holds."""
    spec = _exists(registry, name, allowlist)
    if isinstance(spec, ToolResult):
        return spec
    parsed = _json(arguments)
    if isinstance(parsed, ToolResult):
        return parsed
    checked = _arguments(spec, parsed)
    if isinstance(checked, ToolResult):
        return checked
    signature = call_signature(name, parsed)
    # Before the approval: what was done once in this run is not asked for again.
    if cache is not None and spec.acts_once and signature in cache:
        return ToolResult(ok=True, content=cache[signature], cached=True)
    if spec.requires_approval and not approved and signature not in ctx.approved_calls:
        return ToolResult.failure(
            "needs_approval",
            "A person must approve this call before it is made. It was not made. "
            "Do not call it again until then; say what you would do.",
        )
    return Admitted(spec, checked, signature)


class MisfitError(Exception):
    """Arguments that a tool does not take. `is_check`: because its check itself failed."""

    def __init__(self, why: str, *, is_check: bool = False) -> None:
        super().__init__(why)
        self.is_check = is_check


def misfit(spec: ToolSpec, parsed: Mapping[str, Any]) -> str:
    """What is wrong with arguments for this tool, each field by its name; empty when nothing is."""
    try:
        _checked(spec, parsed)
    except MisfitError as error:
        return str(error)
    return ""


def _checked(spec: ToolSpec, parsed: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments as the function takes them.

    Raises:
        MisfitError: when it does not take them.
    """
    try:
        if spec.args_model is not None:
            return _by_name(spec.args_model.model_validate(parsed))
        problems = [] if spec.check is None else list(spec.check(parsed))
    except ValidationError as error:
        raise MisfitError(_explain(spec, error)) from error
    except Exception as error:
        # A validator of the user's own that fails.
        raise MisfitError(f"{type(error).__name__}: {error}", is_check=True) from error
    if problems:
        raise MisfitError(_first(problems, len(problems)))
    return parsed


def _exists(registry: ToolRegistry, name: str, allowlist: Sequence[str] | None) -> ToolSpec | ToolResult:
    names = ", ".join(spec.name for spec in registry.visible(allowlist)) or "none"
    spec = registry.get(name)
    if spec is None:
        return ToolResult.failure("no_such_tool", f"There is no such tool. The tools are: {names}.")
    if not registry.allows(name, allowlist):
        return ToolResult.failure(
            "not_allowed", f"This is not allowed here. The tools you may use are: {names}."
        )
    return spec


def _json(arguments: str) -> dict[str, Any] | ToolResult:
    if not arguments.strip():
        return {}
    try:
        parsed = json.loads(arguments, parse_constant=_no_constant)
    except RecursionError:
        return ToolResult.failure("bad_json", "The arguments are nested too deeply. Send a flat JSON object.")
    except ValueError as error:
        return ToolResult.failure("bad_json", f"The arguments are not JSON ({error}). Send one JSON object.")
    if not isinstance(parsed, dict):
        return ToolResult.failure(
            "bad_json",
            f"The arguments must be a JSON object, not a {type(parsed).__name__}, for example {{}}.",
        )
    return parsed


def _no_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON number")


def _arguments(spec: ToolSpec, parsed: dict[str, Any]) -> Mapping[str, Any] | ToolResult:
    try:
        return _checked(spec, parsed)
    except MisfitError as error:
        if error.is_check:
            return ToolResult.failure("bad_args", f"The arguments could not be checked: {error}")
        return ToolResult.failure(
            "bad_args", f"The arguments do not fit: {error}. Correct them and call again."
        )


def _by_name(model: BaseModel) -> dict[str, Any]:
    return {info.alias or name: getattr(model, name) for name, info in type(model).model_fields.items()}


def _explain(spec: ToolSpec, error: ValidationError) -> str:
    problems = []
    for item in error.errors(include_url=False, include_input=False)[:_SHOWN_ERRORS]:
        field = ".".join(str(part) for part in item["loc"])
        if item["type"] == "extra_forbidden":
            problems.append(no_such_argument(field, spec.parameters))
        else:
            problems.append(f"'{field}': {item['msg']}")
    return _first(problems, error.error_count())


def no_such_argument(field: str, parameters: Mapping[str, Any]) -> str:
    """That a tool with these parameters has no such argument."""
    return f"'{field}' is not an argument (they are: {', '.join(parameters['properties']) or 'none'})"


def _first(problems: Sequence[str], count: int) -> str:
    more = count - len(problems[:_SHOWN_ERRORS])
    return "; ".join(problems[:_SHOWN_ERRORS]) + (f"; and {more} more" if more > 0 else "")
