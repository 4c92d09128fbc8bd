"""`@tool`: a function's signature becomes the schema that the model sees."""

from __future__ import annotations

import inspect
import json
import re
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar, overload

from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

from agentq.tools.context import CallContext
from agentq.tools.docstring import read_docstring
from agentq.tools.processes import Isolated
from agentq.tools.spec import DEFAULT_RESULT_CHARS, DEFAULT_TIMEOUT_S, Isolation, OnUnknown, ToolSpec

F = TypeVar("F", bound=Callable[..., Any])

CONTEXT_FIELDS = ("user_id", "tenant_id")
"""Parameters of these names get the context's field of the same name."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@overload
def tool(fn: F, /) -> F: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    side_effect: bool = False,
    requires_approval: bool = False,
    idempotent: bool = False,
    repeatable: bool = False,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    max_result_chars: int = DEFAULT_RESULT_CHARS,
    on_unknown: OnUnknown | None = None,
    isolation: Isolation = "thread",
    spill: bool = False,
) -> Callable[[F], F]: ...


def tool(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    side_effect: bool = False,
    requires_approval: bool = False,
    idempotent: bool = False,
    repeatable: bool = False,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    max_result_chars: int = DEFAULT_RESULT_CHARS,
    on_unknown: OnUnknown | None = None,
    isolation: Isolation = "thread",
    spill: bool = False,
) -> Any:
    """Declare a function as a tool. The function stays as it is and gets an attribute `tool_spec`.

    Args:
        fn: the function; its docstring is what the model reads about it, and what its section `Args:` says
            about a parameter stands in the schema.
        name: the tool's name, if not the function's.
        description: what the model reads, if not the docstring.
        side_effect: it changes something outside.
        requires_approval: a person must approve each call.
        idempotent: a repetition with the same `ctx.idempotency_key` does not act twice.
        repeatable: the same call may act again in the same run.
        timeout_s: seconds after which the run goes on without it.
        max_result_chars: a longer result is cut, and says so.
        on_unknown: when nobody knows whether a call has acted, because its time was over or its worker died:
            `tell` the model, which is to verify it, or `ask` a person whether to make it again. By default as
            the agent says. An `idempotent` tool whose worker died is simply called again.
        isolation: `process` runs each call in a process that is killed at its timeout. The function must be
            one of a module, so that the process can import it.
        spill: a longer result is kept whole, up to 1 MB, and the agent gets a tool `read_result` for it.

    Raises:
        TypeError: for a parameter without a usable annotation.
        ValueError: without a docstring, or for a name or limit that cannot be.
    """

    def decorate(func: Callable[..., Any]) -> Callable[..., Any]:
        tool_name = str(name or getattr(func, "__name__", ""))
        doc, of_parameters = read_docstring(func)
        about = description or doc
        _check(tool_name, about, timeout_s, max_result_chars)
        model, context_params = _arguments(tool_name, func, of_parameters)
        spec = ToolSpec(
            name=tool_name,
            description=about or "",
            parameters=_schema(tool_name, model),
            fn=_runner(tool_name, func, isolation, timeout_s),
            args_model=model,
            side_effect=side_effect,
            requires_approval=requires_approval,
            idempotent=idempotent,
            repeatable=repeatable,
            timeout_s=timeout_s,
            max_result_chars=max_result_chars,
            context_params=context_params,
            on_unknown=_check_on_unknown(tool_name, on_unknown),
            isolation=isolation,
            spill=spill,
        )
        try:
            func.tool_spec = spec  # type: ignore[attr-defined]
        except AttributeError:
            raise TypeError(f"the tool {tool_name} is a method: call it in a function with @tool") from None
        return func

    return decorate if fn is None else decorate(fn)


def _check(name: str, about: str | None, timeout_s: float, max_result_chars: int) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} cannot be a tool's name: use up to 64 letters, digits, '_' and '-'")
    if not about or not about.strip():
        raise ValueError(f"the tool {name} needs a docstring: it is all that the model knows about it")
    if timeout_s <= 0:
        raise ValueError(f"the tool {name}: timeout_s must be more than 0 seconds")
    if max_result_chars < 1:
        raise ValueError(f"the tool {name}: max_result_chars must be 1 or more")


def _check_on_unknown(name: str, on_unknown: OnUnknown | None) -> OnUnknown | None:
    if on_unknown not in (None, "tell", "ask"):
        raise ValueError(f"the tool {name}: on_unknown is 'tell' or 'ask', not {on_unknown!r}")
    return on_unknown


def _runner(
    name: str, func: Callable[..., Any], isolation: Isolation, timeout_s: float
) -> Callable[..., Any]:
    if isolation not in ("thread", "process"):
        raise ValueError(f"the tool {name}: isolation is 'thread' or 'process', not {isolation!r}")
    return func if isolation == "thread" else Isolated(name, func, timeout_s)


def _arguments(
    name: str, func: Callable[..., Any], about: Mapping[str, str]
) -> tuple[type[BaseModel], tuple[str, ...]]:
    hints = _hints(name, func)
    fields: dict[str, Any] = {}
    context_params: list[str] = []
    for param in inspect.signature(func).parameters.values():
        if param.kind not in (param.POSITIONAL_OR_KEYWORD, param.KEYWORD_ONLY):
            raise TypeError(
                f"the tool {name}: {param} has no name that a model could use, name each argument"
            )
        if param.name == "ctx" or param.name in CONTEXT_FIELDS or hints.get(param.name) is CallContext:
            context_params.append(param.name)
            continue
        if param.name not in hints:
            raise TypeError(
                f"the tool {name}: the parameter {param.name!r} needs a type, for example {param.name}: str"
            )
        # The alias lets a parameter have any name, also one that a pydantic model has as a method.
        fields[f"arg_{param.name}"] = _field(param, hints[param.name], about.get(param.name))
    try:
        model = create_model(f"{name}_arguments", __config__=ConfigDict(extra="forbid"), **fields)
    except PydanticUserError as error:
        said = str(error.message).splitlines()[0]
        raise TypeError(f"the tool {name} has a parameter whose type cannot be checked: {said}") from error
    return model, tuple(context_params)


def _field(param: inspect.Parameter, hint: Any, about: str | None) -> tuple[Any, Any]:
    """The parameter as a field of a model. What `Field(…)` says of it goes before its docstring."""
    default = ... if param.default is param.empty else param.default
    if isinstance(default, FieldInfo):
        hint, default = Annotated[hint, default], ...
    if about:
        # The innermost says the least.
        of_type = typing.get_args(hint) if typing.get_origin(hint) is Annotated else (hint,)
        hint = Annotated[(of_type[0], Field(description=about), *of_type[1:])]
    return hint, Field(default, alias=param.name)


def _hints(name: str, func: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(func, include_extras=True)
    except NameError as error:
        raise TypeError(f"the tool {name} has a type that is not known in its module: {error}") from error


class _Generator(GenerateJsonSchema):
    """A default that JSON cannot carry is simply not shown: the function has it all the same."""

    def emit_warning(self, kind: Any, detail: str) -> None:
        """Say all else."""
        if kind != "non-serializable-default":
            super().emit_warning(kind, detail)


def _schema(name: str, model: type[BaseModel]) -> dict[str, Any]:
    try:
        schema = model.model_json_schema(schema_generator=_Generator)
    except PydanticInvalidForJsonSchema as error:
        raise TypeError(f"the tool {name} has a parameter that JSON cannot carry: {error.message}") from error
    schema.setdefault("properties", {})
    cleaned: dict[str, Any] = _without_titles(schema)
    return cleaned


def _without_titles(node: Any) -> Any:
    """Titles repeat the names and cost tokens; a property *called* title is kept."""
    if isinstance(node, list):
        return [_without_titles(item) for item in node]
    if not isinstance(node, dict):
        return node
    kept: dict[str, Any] = {}
    for key, value in node.items():
        if key == "default" and not _is_json(value):
            continue
        if key in ("properties", "$defs"):
            kept[key] = {name: _without_titles(child) for name, child in value.items()}
        elif key in ("default", "const", "enum", "examples"):
            kept[key] = value
        elif key != "title":
            kept[key] = _without_titles(value)
    return kept


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True
