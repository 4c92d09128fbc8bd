"""A docstring in Google's style, as a model is to read it: the text, and what it says of each parameter."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

_SECTION = re.compile(r"(?:Args|Arguments|Parameters):\s*")
_ENTRY = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?:\s*(.*)")


def read_docstring(func: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """The docstring without its section `Args:`, and that section by parameter. Empty without a docstring."""
    lines = (inspect.getdoc(func) or "").splitlines()
    start = next((at for at, line in enumerate(lines) if _SECTION.fullmatch(line)), None)
    if start is None:
        return "\n".join(lines), {}
    end = next((at for at in range(start + 1, len(lines)) if re.match(r"\S", lines[at])), len(lines))
    found = _entries(lines[start + 1 : end])
    if not found:
        return "\n".join(lines), {}
    return "\n".join([*lines[:start], *lines[end:]]).strip(), found


def _entries(lines: list[str]) -> dict[str, str]:
    indents = [len(line) - len(line.lstrip()) for line in lines if line.strip()]
    least = min(indents, default=0)
    entries: dict[str, str] = {}
    name = ""
    for line in lines:
        entry = _ENTRY.fullmatch(line.strip())
        if entry and len(line) - len(line.lstrip()) == least:
            name = entry[1]
            entries[name] = entry[2].strip()
        elif name and line.strip():
            entries[name] = f"{entries[name]} {line.strip()}".strip()
    return entries
