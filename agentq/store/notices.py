"""Notices: batches that are over, and who wants to be told."""

from __future__ import annotations

from dataclasses import dataclass

from agentq.store.scripts import Scripts, unexpected

KEPT_MS = 86_400_000
"""After a day nobody tries any more."""


@dataclass(frozen=True, slots=True)
class Notice:
    """That a batch is over, to be told to a URL."""

    batch: str
    number: int
    """Which of the batch's ends it is about, from 1."""
    url: str
    at_ms: int
    """When it was over."""
    tries: int
    """How often it was sent in vain."""


class Notices:
    """All notices of one namespace. `close_batch` in `lua/_runs.lua` makes them."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts

    def claim(self, lease_ms: int, most: int, *, can_sign: bool) -> list[Notice]:
        """Take on what is due, so that nobody else sends it within `lease_ms`.

        Args:
            lease_ms: it is anybody's again after so long.
            most: so many at most.
            can_sign: False takes none, and says in the batches why they are not sent.
        """
        reply = self._scripts.call("notice_claim", lease_ms, most, "1" if can_sign else "", KEPT_MS)
        notices = []
        for start in range(0, len(reply), 5):
            batch, number, url, at, tries = reply[start : start + 5]
            notices.append(Notice(batch, int(number), url, int(at), int(tries)))
        return notices

    def sent(self, notice: Notice) -> None:
        """It was received."""
        self._done(notice, "", "")

    def failed(self, notice: Notice, why: str, retry_ms: int | None) -> None:
        """It was not; it is tried again after `retry_ms`, None for never."""
        self._done(notice, why, "" if retry_ms is None else retry_ms)

    def _done(self, notice: Notice, why: str, retry_ms: int | str) -> None:
        reply = self._scripts.call("notice_done", notice.batch, notice.number, notice.tries, why, retry_ms)
        if reply not in (["OK"], ["STALE"]):
            raise unexpected("notice_done", reply)
