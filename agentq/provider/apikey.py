"""A provider's key: read when a call needs it, so that a producer needs none and a new one counts at once."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from agentq.provider.errors import AuthError, LLMError

_TAG_DIGITS = 8
_FILE_BYTES = 8_192
_SHORTEST_KEY = 8


@dataclass(frozen=True, slots=True)
class ApiKey:
    """Where a key is: the file, else the variable, else the file that the variable with `_FILE` names."""

    variable: str
    file: str | None = None

    @property
    def source(self) -> str:
        """Where the key is read, for people; empty where there is none."""
        if self.file:
            return self.file
        for name in (self.variable, f"{self.variable}_FILE"):
            if os.environ.get(name, "").strip():
                return name
        return ""

    def read(self) -> str | None:
        """The key, or None when there is none.

        Raises:
            AuthError: when the file cannot be read or is empty, or the key cannot be in a header.
        """
        value = os.environ.get(self.variable, "").strip()
        named = os.environ.get(f"{self.variable}_FILE", "").strip()
        if self.file:
            return self._in_file(self.file, f"the key file {self.file}")
        if not value and named:
            # Not its path: who mixes the two variables up has the key itself there.
            return self._in_file(named, f"the key file that {self.variable}_FILE names")
        return self._checked(value, self.variable) or None

    def _in_file(self, path: str, where: str) -> str:
        try:
            with Path(path).open("rb") as file:
                key = file.read(_FILE_BYTES + 1).decode().strip()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "it is no text"
            raise AuthError(f"{where} cannot be read: {reason}") from error
        if not key:
            raise AuthError(f"{where} is empty")
        if len(key) > _FILE_BYTES:
            raise AuthError(f"{where} is longer than any key")
        return self._checked(key, where)

    def _checked(self, key: str, where: str) -> str:
        if not key.isascii() or not key.isprintable() or " " in key:
            raise AuthError(f"the key in {where} has characters that no key has: copy it again")
        return key


def key_tag(base_url: str, key: str | None) -> str:
    """A short name for an account: its address and key, which cannot be read out of it."""
    return hashlib.sha256(f"{base_url}\n{key or ''}".encode()).hexdigest()[:_TAG_DIGITS]


def hide(key: str | None, error: LLMError) -> None:
    """Take the key out of an error: some servers say which one they refuse."""
    if key is None or len(key) < _SHORTEST_KEY:
        return
    error.message = error.message.replace(key, "[the key]")
    error.args = (error.message,)
    error.request_id = error.request_id and error.request_id.replace(key, "[the key]")
    if key in str(error.cause):
        error.cause = error.__cause__ = None
