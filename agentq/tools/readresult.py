"""`read_result`: the tool with which an agent reads a result that was too long for the conversation."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from agentq.tools.context import CallContext
from agentq.tools.decorator import tool
from agentq.tools.shelf import PREFIX
from agentq.tools.spec import ToolSpec

READ_CHARS = 8_000
"""The most that is read at once."""
_DEFAULT_CHARS = 4_000
_FINDS = 10
_AROUND_CHARS = 200


@tool(max_result_chars=READ_CHARS + 500)
def read_result(
    ctx: CallContext,
    ref: Annotated[str, Field(description="As the result names it, for example result:r1a2b3c4d5e")],
    offset: Annotated[int, Field(ge=0, description="The character to begin at")] = 0,
    limit: Annotated[int, Field(ge=1, le=READ_CHARS, description="How many characters")] = _DEFAULT_CHARS,
    find: Annotated[str | None, Field(description="Show the places that have this text instead")] = None,
) -> str:
    """Read a part of a long result that was kept, or find a text in it. Read-only."""
    reference = ref.strip().removeprefix(PREFIX)
    text = None if ctx.shelf is None else ctx.shelf.read(reference)
    if text is None:
        return f"There is no kept result {ref!r} in this run. Use the reference that a result names."
    if find:
        return _places(text, find, offset)
    if offset >= len(text):
        return f"[nothing: the result has {len(text):,} characters]"
    part = text[offset : offset + limit]
    return f"[characters {offset:,} to {offset + len(part):,} of {len(text):,}]\n{part}"


def _places(text: str, find: str, offset: int) -> str:
    places: list[str] = []
    wanted, folded, at = find.casefold(), text.casefold(), offset
    if len(folded) != len(text):  # places in the one would not be places in the other
        wanted, folded = find, text
    while (at := folded.find(wanted, at)) >= 0:
        if len(places) == _FINDS:
            places.append(f"[more of them: find again from offset={at}]")
            break
        start = max(0, at - _AROUND_CHARS)
        places.append(f"[at {at:,}] {text[start : at + len(find) + _AROUND_CHARS]}")
        at += len(find)
    if not places:
        return f"[{find!r} is nowhere in the {len(text) - offset:,} characters from {offset:,} on]"
    return "\n".join(places)


READ_RESULT: ToolSpec = read_result.tool_spec  # type: ignore[attr-defined]
