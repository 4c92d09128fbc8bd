"""The form that an answer must have: a pydantic model, its JSON schema, and how a reply is checked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.errors import PydanticUserError

from agentq.core.errors import UsageError
from agentq.core.text import encodable

PROBLEM_CHARS_MAX = 500
"""What is told of a wrong answer, at most."""
_PROBLEMS_MAX = 8
_FENCE = "```"


class Output:
    """A pydantic model that answers must fit.

    Raises:
        UsageError: for anything else, and for a model whose JSON schema is not that of an object.
    """

    def __init__(self, model: Any) -> None:
        if not isinstance(model, type) or not issubclass(model, BaseModel) or model is BaseModel:
            raise UsageError(
                f"output= takes a pydantic model class, not {model!r}",
                hint="write class Ticket(BaseModel): …, and output=Ticket",
            )
        self.model: type[BaseModel] = model
        self.schema = _schema(model)

    @property
    def instructions(self) -> str:
        """What tells a model of the form, where its provider does not hold it to a schema."""
        schema = json.dumps(self.schema, ensure_ascii=False, separators=(",", ":"))
        return (
            "When you give your final answer, answer with one JSON object and nothing else: no other words, "
            f"no code fence. It must conform to this JSON schema:\n{schema}"
        )

    def problem(self, text: str) -> str | None:
        """What is wrong with an answer, in a few words; None when it fits."""
        try:
            self._read(text)
        except ValidationError as error:
            return encodable(_listed(error))
        except Exception as error:  # noqa: BLE001 - also whatever a validator of the user's raises
            return encodable(f"{error}"[:PROBLEM_CHARS_MAX]) or type(error).__name__
        return None

    def read(self, text: str) -> BaseModel | None:
        """The answer as an instance of the model; None when it does not fit."""
        try:
            return self._read(text)
        except Exception:  # noqa: BLE001 - as above
            return None

    def _read(self, text: str) -> BaseModel:
        json_answer(text)
        # From the text and not from its value: as JSON, a date is a string.
        return self.model.model_validate_json(unfenced(text))


def json_answer(text: str) -> dict[str, Any]:
    """The JSON object that an answer is, also in a code fence around all of it.

    Raises:
        ValueError: when it is none.
    """
    try:
        value = json.loads(unfenced(text), parse_constant=_refused)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"it is no JSON: {error}" if text.strip() else "it is empty") from None
    if not isinstance(value, dict):
        raise ValueError("it is JSON, and no object")
    return value


def unfenced(text: str) -> str:
    """The text without a ``` or ```json fence around all of it."""
    bare = text.strip()
    if len(bare) < 2 * len(_FENCE) or not bare.startswith(_FENCE) or not bare.endswith(_FENCE):
        return bare
    inside = bare[len(_FENCE) : -len(_FENCE)]
    word, _, rest = inside.partition("\n")
    return rest.strip() if word.strip().lower() in {"", "json"} else bare


def _schema(model: type[BaseModel]) -> dict[str, Any]:
    try:
        schema = model.model_json_schema()
    except PydanticUserError as error:
        raise UsageError(
            f"output={model.__name__}: it has no JSON schema: {str(error).splitlines()[0]}",
            hint="use types that JSON has",
        ) from None
    if schema.get("type") != "object" and "$ref" not in schema:
        raise UsageError(
            f"output={model.__name__}: its JSON is no object, and an answer must be one",
            hint="put it into a field of another model",
        )
    return schema


def _listed(error: ValidationError) -> str:
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    told = [f"{_path(problem['loc'])}{problem['msg']}" for problem in problems[:_PROBLEMS_MAX]]
    more = len(problems) - len(told)
    text = "; ".join(told) + (f"; and {more} more" if more else "")
    return text[:PROBLEM_CHARS_MAX]


def _path(parts: Sequence[int | str]) -> str:
    return ".".join(map(str, parts)) + ": " if parts else ""


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")
