"""When two calls are the same call."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

_HEX_DIGITS = 16


def call_signature(name: str, arguments: Mapping[str, Any] | str) -> str:
    """`name:` and 16 hex digits of the arguments. Neither their order nor their spacing matters.

    Text that is not JSON is hashed as it is: two equal mistakes are still the same call.
    """
    text = arguments if isinstance(arguments, str) else None
    value: Any = arguments
    if text is not None:
        try:
            value = json.loads(text) if text.strip() else {}
        except (ValueError, RecursionError):
            return _sign(name, text)
    try:
        canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, default=str)
    except (TypeError, ValueError, RecursionError):
        canonical = text if text is not None else repr(value)
    return _sign(name, canonical)


def _sign(name: str, text: str) -> str:
    return f"{name}:{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:_HEX_DIGITS]}"
