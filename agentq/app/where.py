"""A filter that people type: `batch=july state=waiting`."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from agentq.core.errors import UsageError
from agentq.core.lifecycle import RunState
from agentq.core.records import PendingCall, RunRecord
from agentq.core.words import nearest

RUN_KEYS = ("run", "batch", "tenant", "agent", "state", "custom_id")
"""What can be asked of a run."""
CALL_KEYS = (*RUN_KEYS, "tool", "kind")
"""What can be asked of a call that waits for a person."""

_CHOICES: Mapping[str, Collection[str]] = {
    "state": [state.value for state in RunState],
    "kind": ["approval", "unknown"],
}
Terms = str | Mapping[str, str] | Sequence[str]


@dataclass(frozen=True, slots=True)
class Where:
    """Terms that all hold; without terms, everything."""

    terms: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return " ".join(f"{key}={shlex.quote(value)}" for key, value in self.terms.items())

    def __bool__(self) -> bool:
        return bool(self.terms)

    def holds(self, record: RunRecord) -> bool:
        """Whether the run is meant, as far as the terms are about runs."""
        spec = record.spec
        facts = {
            "run": record.id,
            "batch": spec.batch,
            "tenant": spec.tenant,
            "agent": spec.agent,
            "state": record.state.value,
            "custom_id": spec.custom_id,
        }
        return all(facts[key] == value for key, value in self.terms.items() if key in facts)

    def holds_for(self, record: RunRecord, call: PendingCall) -> bool:
        """Whether this call of the run is meant."""
        facts = {"tool": call.tool, "kind": call.kind}
        return self.holds(record) and all(
            facts[key] == value for key, value in self.terms.items() if key in facts
        )


def where(terms: Terms | None, *, keys: Sequence[str]) -> Where:
    """The filter that these terms are: `key=value` words (quoted as in a shell), or a mapping.

    Raises:
        UsageError: for a key that is not in `keys`, a key that is given twice, or a word that is no term.
    """
    if terms is None:
        return Where()
    pairs = list(terms.items()) if isinstance(terms, Mapping) else [_pair(word) for word in _words(terms)]
    found: dict[str, str] = {}
    for key, value in pairs:
        if key not in keys:
            raise UsageError(
                f"there is no filter {key!r}{nearest(key, keys)}", hint=f"filters are {', '.join(keys)}"
            )
        if found.setdefault(key, value) != value:
            raise UsageError(f"{key} is given twice, as {found[key]!r} and {value!r}: all terms must hold")
        if value not in _CHOICES.get(key, (value,)):
            raise UsageError(
                f"there is no {key} {value!r}{nearest(value, _CHOICES[key])}",
                hint=f"{key} is one of {', '.join(_CHOICES[key])}",
            )
    return Where(found)


def _words(terms: str | Sequence[str]) -> list[str]:
    texts = [terms] if isinstance(terms, str) else terms
    try:
        return [word for text in texts for word in shlex.split(text)]
    except ValueError as error:
        raise UsageError(
            f"the filter {' '.join(texts)!r} cannot be read: {error}", hint="quote as in a shell"
        ) from None


def _pair(word: str) -> tuple[str, str]:
    key, equals, value = word.partition("=")
    if not equals or not value:
        raise UsageError(
            f"{word!r} is no filter", hint='a filter is key=value, for example batch=july; custom_id="a b"'
        )
    return key, value
