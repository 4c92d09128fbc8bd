"""Ids and names. An id is random; a name is what a person chose and may stand in a Redis key."""

from __future__ import annotations

import re
import secrets

from agentq.core.errors import UsageError

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32: no i, l, o, u
_LETTERS = (_ALPHABET * 8).encode()
"""A letter for each byte: 256 is a multiple of 32, so none comes more often."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,99}")


def new_run_id() -> str:
    """A fresh run id: `run_` and 60 random bits. The submit script refuses one that exists."""
    return "run_" + secrets.token_bytes(12).translate(_LETTERS).decode()


def new_nonce() -> str:
    """Eight hex digits that tell two grants of the same fence number apart."""
    return secrets.token_hex(4)


def check_name(kind: str, name: str) -> str:
    """The name itself, when it may stand in a key.

    Raises:
        UsageError: when it is empty, too long or has characters that a key, a shell or a URL would mangle.
    """
    if not _NAME.fullmatch(name):
        article = "an" if kind[0] in "aeiou" else "a"
        raise UsageError(
            f"{name!r} cannot be the name of {article} {kind}: use up to 100 letters, digits, "
            "'.', '_', '@' and '-', starting with a letter or digit"
        )
    if name.endswith(("@day", "@month")):
        raise UsageError(f"{name!r} cannot be the name of a {kind}: @day and @month are windows of a limit")
    return name
