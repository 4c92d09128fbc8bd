"""The word that names a scope of the ledger, or its windows: `tenant:acme`, `tenant:acme@day`."""

from __future__ import annotations

import re
from datetime import date
from typing import TYPE_CHECKING

from agentq.core.errors import NoSuchRunError, UsageError
from agentq.core.ids import check_name
from agentq.core.words import nearest

if TYPE_CHECKING:
    from agentq.store.scopes import Scopes

KINDS = ("tenant", "batch", "run", "agent", "model", "key")
ONLY_NEW_RUNS = ("agent", "model", "key")
"""A run is in such a scope when it had a limit as the run was submitted."""
_WINDOWS = ("day", "month")
_LIKE_WINDOWS = {"today": "day", "daily": "day", "days": "day", "monthly": "month", "months": "month"}
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@:/-]{0,99}")
_FORM = (
    "a scope is global, tenant:, batch:, run:, agent:, model: or key: and a name, or one with @day or @month"
)


def parse_scope(word: str, *, period: bool = False) -> str:
    """The scope itself, when it may be one.

    Args:
        word: what was typed.
        period: one day or month of a window may be named too: `tenant:acme@day:2026-11-28`.

    Raises:
        UsageError: when it cannot name a scope, with the nearest that can.
    """
    base, window, day = _parts(word)
    if day and not period:
        raise UsageError(
            f"{word!r} is one {window} of {base}; limits are those of every {window}",
            hint=f"{base}@{window} names them all, and agentq budget show {word} shows the one",
        )
    kind, colon, name = base.partition(":")
    if kind == "global" and not colon:
        return word
    if kind == "global":
        raise UsageError(f"{word!r} is no scope: there is one global, without a name", hint="write global")
    if kind not in KINDS or not colon:
        raise UsageError(f"{word!r} is no scope{_meant(kind, name)}", hint=_FORM)
    if not name:
        raise UsageError(f"{word!r} names no {kind}", hint=f"write {kind}:NAME")
    if kind == "model":
        if not _MODEL.fullmatch(name) or re.search(r"@[A-Za-z]+:", name):
            raise UsageError(f"{name!r} cannot be the name of a model", hint=_FORM)
    else:
        check_name(kind, name)
    if window and kind == "run":
        raise UsageError(f"{word!r}: a run has no {window}s, it has one budget", hint=f"write {base}")
    return word


def base_of(scope: str) -> str:
    """The scope that a window is of, else the scope itself."""
    return _parts(scope)[0]


def require_subject(scopes: Scopes, scope: str) -> None:
    """Return when the run or the batch that a scope is about exists; the others may come later.

    Raises:
        UsageError: when there is none.
    """
    base = base_of(scope)
    if scopes.has_subject(base):
        return
    kind, _, name = base.partition(":")
    if kind == "run":
        raise NoSuchRunError(name)
    known = [other.partition(":")[2] for other in scopes.names() if other.startswith("batch:")]
    raise UsageError(f"there is no batch {name!r}{nearest(name, known)}", hint="agentq batches lists them")


def guess(scopes: Scopes, scope: str) -> str:
    """For a scope without an account: ` (did you mean 'tenant:acme'?)`, or nothing."""
    base = base_of(scope)
    if scopes.exists(base):
        return ""
    kind, _, name = base.partition(":")
    # By their names alone: of the same kind each would resemble each.
    close = nearest(
        name, [other.partition(":")[2] for other in scopes.names() if other.startswith(f"{kind}:")]
    )
    return close.replace("'", f"'{kind}:", 1)


def _parts(word: str) -> tuple[str, str, str]:
    """Scope, window or nothing, day or month or nothing.

    Raises:
        UsageError: for what looks like a window and is none.
    """
    base, mark, tail = word.rpartition("@")
    window, _, day = tail.partition(":")
    if not mark or not base:
        return word, "", ""
    if window in _WINDOWS:
        if base.endswith(tuple(f"@{kind}" for kind in _WINDOWS)):
            raise UsageError(f"{word!r}: a window has no windows", hint=f"write {base}")
        if day and not _is_period(window, day):
            example = "2026-11-29" if window == "day" else "2026-11"
            raise UsageError(f"{day!r} is no {window}", hint=f"write {base}@{window}:{example}")
        return base, window, day
    near = _LIKE_WINDOWS.get(window) or (window[:1] in "dm" and _near_window(window))
    if near and not day:
        raise UsageError(
            f"{word!r}: there is no window {window!r} (did you mean {base}@{near}?)",
            hint="the windows are @day and @month, in UTC",
        )
    return word, "", ""


def _is_period(window: str, text: str) -> bool:
    try:
        day = date.fromisoformat(text if window == "day" else f"{text}-01")
    except ValueError:
        return False
    return text == day.isoformat()[: len(text)]


def _near_window(word: str) -> str:
    close = nearest(word, _WINDOWS)
    return next((kind for kind in _WINDOWS if f"'{kind}'" in close), "")


def _meant(kind: str, name: str) -> str:
    if not name:
        return nearest(kind, ("global",))
    close = next((known for known in KINDS if f"'{known}'" in nearest(kind, KINDS)), "")
    return f" (did you mean '{close}:{name}'?)" if close else ""
