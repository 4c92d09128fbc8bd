"""How a call may end without a value, as whoever carries it out tells it."""

from __future__ import annotations


class OutOfTimeError(BaseException):
    """The call's time is over, and nobody waits for it any more. No Exception: it goes past wrappers."""


class NotStartedError(Exception):
    """The call could not begin: it has done nothing, and may be made again.

    `is_late`: because its time was over before.
    """

    def __init__(self, why: str, *, is_late: bool = False) -> None:
        super().__init__(why)
        self.is_late = is_late


class ToolFailedError(Exception):
    """The tool has failed; the text is for the model, as it is."""
