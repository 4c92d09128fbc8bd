"""A request that is refused, before it is put into the words of a dialect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Refusal(Exception):  # noqa: N818 - an answer like any other, not a failure of ours
    """The answer is an error. Each dialect writes it in its own shape, unless `body` is given."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str | None = None,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
        body: Any = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        """The `type` in the body; None: what the dialect calls this status."""
        self.code = code
        self.param = param
        self.headers = dict(headers or {})
        self.body = body
        """The whole body: a text as it is, anything else as JSON; None: the dialect's shape."""


def invalid(message: str, *, param: str | None = None, code: str | None = None) -> Refusal:
    """A request that the service does not understand: 400."""
    return Refusal(400, message, param=param, code=code)
