"""The form of an input: told from the ending of its name and from its first line."""

from __future__ import annotations

import re
from pathlib import PurePath

from agentq.core.errors import UsageError
from agentq.core.words import nearest

FORMS = ("jsonl", "openai", "anthropic", "csv", "tsv", "text")

_ENDINGS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
}
_TEXT_ENDINGS = (".txt", ".text")
_JSON = re.compile(rb"\s*(\{|\[\s*(\{|$))")


def check_form(form: str | None, *, mapped: bool) -> None:
    """Refuse a form that does not exist, or has no columns for a map.

    Raises:
        UsageError: with the nearest form, or the forms that would do.
    """
    if form is None:
        return
    if form not in FORMS:
        raise UsageError(
            f"there is no form {form!r}{nearest(form, FORMS)}", hint=f"the forms are {', '.join(FORMS)}"
        )
    if mapped and form in {"openai", "anthropic", "text"}:
        raise UsageError(
            f"--map is for columns, and the form {form!r} has none", hint="it goes with csv, tsv and jsonl"
        )


def form_of(source: str, first: bytes, *, mapped: bool) -> str:
    """What an input is, where nobody has said it.

    Lines that look like JSON are never taken for text, and a header never for a row: a wrong guess should be
    an error, not a thousand wrong calls.

    Args:
        source: its path, or `-`.
        first: its first line that is not blank.
        mapped: whether columns are mapped.

    Returns:
        One of `FORMS`; `jsonl` is also what has the batch lines of providers in it.
    """
    path = PurePath(source.lower())
    ending = PurePath(path.stem).suffix if path.suffix == ".gz" else path.suffix
    if ending in _ENDINGS:
        return _ENDINGS[ending]
    if _JSON.match(first):
        return "jsonl"
    tabs, commas = (_cells(first, separator) for separator in (b"\t", b","))
    if mapped:
        return "tsv" if len(tabs) > len(commas) else "csv"
    if ending in _TEXT_ENDINGS:
        return "text"
    if b"input" in commas:
        return "csv"
    return "tsv" if b"input" in tabs else "text"


def _cells(line: bytes, separator: bytes) -> list[bytes]:
    return [cell.strip().strip(b'"') for cell in line.split(separator)]
