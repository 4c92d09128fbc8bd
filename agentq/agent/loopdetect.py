"""Notices a run that makes the same call again and again: first a warning, then a stop."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

REPEAT_WARNING = (
    "\n\n[note: this exact call was already made earlier in this run and "
    "returned the same result. Repeating it will not produce new information. "
    "Use a different tool, different arguments, or answer with what you have.]"
)
"""Put inside the tool's result, where the model looks."""

_DIGEST_HEX = 8


class Verdict(Enum):
    """What a call means for the run."""

    OK = "ok"
    WARN = "warn"
    STOP = "stop"


@dataclass(slots=True)
class _Count:
    digest: str
    same: int = 1
    changing: int = 1


def digest(content: str) -> str:
    """Eight hex digits that stand for a result."""
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_HEX]


@dataclass
class LoopDetector:
    """Counts calls by signature and by whether the result is the one before.

    The occurrence number `warn_at` of the same call with the same result is warned about, number
    `stop_at` ends the run; another result begins that count again. A call whose result keeps changing,
    like a status that is polled, ends the run at the result number `changing_stop_at`.

    Raises:
        ValueError: for a threshold below 2, which would fire at the first sight.
    """

    warn_at: int = 2
    stop_at: int = 3
    changing_stop_at: int = 20
    counts: dict[str, _Count] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for name in ("warn_at", "stop_at", "changing_stop_at"):
            if getattr(self, name) < 2:
                raise ValueError(
                    f"{name}={getattr(self, name)}: nothing repeats at first sight, use 2 or more"
                )

    def observe(self, signature: str, result: str = "") -> Verdict:
        """Count one call with the content of its result, and judge."""
        return self.observe_digest(signature, digest(result))

    def observe_digest(self, signature: str, result_digest: str) -> Verdict:
        """Like `observe`, for a result of which only the digest is left, as in a trace."""
        count = self.counts.get(signature)
        if count is None:
            self.counts[signature] = _Count(result_digest)
            return Verdict.OK
        if count.digest == result_digest:
            count.same += 1
        else:
            count.digest, count.same = result_digest, 1
            count.changing += 1
        if count.same >= self.stop_at or count.changing >= self.changing_stop_at:
            return Verdict.STOP
        return Verdict.WARN if count.same >= self.warn_at else Verdict.OK

    def fresh(self) -> LoopDetector:
        """A detector with the same thresholds that has seen nothing."""
        return replace(self, counts={})

    def as_dict(self) -> dict[str, Any]:
        """Thresholds and counts as a JSON object."""
        counts = {name: [count.digest, count.same, count.changing] for name, count in self.counts.items()}
        return {
            "warn_at": self.warn_at,
            "stop_at": self.stop_at,
            "changing_stop_at": self.changing_stop_at,
            "counts": counts,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> LoopDetector:
        """The inverse of `as_dict`."""
        counts = {name: _Count(*count) for name, count in data.get("counts", {}).items()}
        return cls(**{**data, "counts": counts})
