"""A provider's key: read when a call needs it, so that a producer needs none and a new one counts at once."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from agentq.provider.errors import AuthError

_TAG_DIGITS = 8


@dataclass(frozen=True, slots=True)
class ApiKey:
    """Where a key is: the file, else the variable, else the file that the variable with `_FILE` names."""

    variable: str
    file: str | None = None

    def read(self) -> str | None:
        """The key, or None when there is none.

        Raises:
            AuthError: when the file cannot be read or is empty, or the key cannot be in a header.
        """
        path = self.file or (
            None if os.environ.get(self.variable) else os.environ.get(f"{self.variable}_FILE")
        )
        if path is None:
            return self._checked(os.environ.get(self.variable, "").strip(), self.variable) or None
        try:
            key = Path(path).read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is no text"
            raise AuthError(f"the key file {path} cannot be read: {reason}") from error
        if not key:
            raise AuthError(f"the key file {path} is empty")
        return self._checked(key, path)

    def _checked(self, key: str, where: str) -> str:
        if not key.isascii() or not key.isprintable() or " " in key:
            raise AuthError(f"the key in {where} has characters that no key has: copy it again")
        return key


def key_tag(base_url: str, key: str | None) -> str:
    """A short name for an account: its address and key, which cannot be read out of it."""
    return hashlib.sha256(f"{base_url}\n{key or ''}".encode()).hexdigest()[:_TAG_DIGITS]
