"""A filter that people type: `batch=july state:parked,waiting usd>0.5 -agent:test*`.

Terms that all hold. A term is a key, a sign and a value: `:` and `=` say that it is so, `!=` or a `-` in
front that it is not, and `>`, `>=`, `<`, `<=` compare numbers. Values with commas between them are
alternatives, `*` stands for any text.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from fnmatch import fnmatchcase
from typing import Any

from agentq.core.errors import UsageError
from agentq.core.lifecycle import RunState, StopReason
from agentq.core.money import NANO
from agentq.core.records import BatchRecord, PendingCall, RunRecord
from agentq.core.timespan import parse_span
from agentq.core.words import nearest

RUN_KEYS = (
    "run",
    "batch",
    "tenant",
    "agent",
    "state",
    "custom_id",
    "stop_reason",
    "stop_scope",
    "usd",
    "tokens",
    "steps",
    "attempts",
    "generation",
    "age",
)
"""What can be asked of a run."""
CALL_KEYS = (*RUN_KEYS, "tool", "kind")
"""What can be asked of a call that waits for a person."""
BATCH_KEYS = ("batch", "tenant", "agent", "age")
"""What can be asked of a batch."""

_CHOICES: Mapping[str, Collection[str]] = {
    "state": [state.value for state in RunState],
    "stop_reason": [reason.value for reason in StopReason if reason is not StopReason.NEEDS_APPROVAL],
    "kind": ["approval", "unknown"],
}
_COUNTS = frozenset({"usd", "tokens", "steps", "attempts", "generation"})
_TERM = re.compile(r"(-?)([A-Za-z_]+)(!=|>=|<=|[:=<>])(.*)", re.DOTALL)
_COMPARE: Mapping[str, Callable[[Decimal, Decimal], bool]] = {
    ">": lambda fact, value: fact > value,
    ">=": lambda fact, value: fact >= value,
    "<": lambda fact, value: fact < value,
    "<=": lambda fact, value: fact <= value,
}
_HINT = 'a filter is key=value, for example batch=july; state!=ended; "usd>0.5"; custom_id="a b"'

Terms = str | Mapping[str, str] | Sequence[str]
Fact = str | Decimal | None


@dataclass(frozen=True, slots=True)
class Term:
    """One thing that must hold."""

    key: str
    sign: str
    """`=`, `!=`, `>`, `>=`, `<` or `<=`."""
    value: str
    """As it was given."""
    is_exact: bool = False
    """Commas and stars in the value are nothing but themselves: it comes from a program."""
    numbers: tuple[Decimal, ...] = ()
    """Of a number, its alternatives: USD, a count, or milliseconds."""

    def __str__(self) -> str:
        return f"{self.key}{self.sign}{shlex.quote(self.value)}"

    @property
    def alternatives(self) -> list[str]:
        """Of a text: the value itself, and what is between its commas."""
        return [self.value] if self.is_exact else [self.value, *self.value.split(",")]

    @property
    def is_one(self) -> bool:
        """Whether it says what its fact is, and nothing else can be."""
        return self.sign == "=" and (self.is_exact or not set(self.value) & set(",*"))

    def holds(self, fact: Fact) -> bool:
        """Whether it holds of this fact; None: there is nothing of the kind."""
        if self.sign in _COMPARE:
            return isinstance(fact, Decimal) and _COMPARE[self.sign](fact, self.numbers[0])
        return self._is(fact) is (self.sign == "=")

    def _is(self, fact: Fact) -> bool:
        if isinstance(fact, str):
            if self.is_exact:
                return fact == self.value
            return any(
                fnmatchcase(fact, _glob(value)) if "*" in value else fact == value
                for value in self.alternatives
            )
        return fact in self.numbers


@dataclass(frozen=True, slots=True)
class Where:
    """Terms that all hold; without terms, everything."""

    terms: tuple[Term, ...] = ()
    now_ms: int = field(default=0, compare=False)
    """From when ages are counted, in the server's milliseconds."""

    def __str__(self) -> str:
        return " ".join(map(str, self.terms))

    def __bool__(self) -> bool:
        return bool(self.terms)

    def only(self, key: str) -> str | None:
        """The one value that this key may have, where a term says so."""
        return next((term.value for term in self.terms if term.key == key and term.is_one), None)

    def holds(self, record: RunRecord) -> bool:
        """Whether the run is meant, as far as the terms are about runs."""
        spec = record.spec
        return self._hold(
            {
                "run": record.id,
                "batch": spec.batch,
                "tenant": spec.tenant,
                "agent": spec.agent,
                "state": record.state.value,
                "custom_id": spec.custom_id,
                "stop_reason": record.stop_reason.value if record.stop_reason else None,
                "stop_scope": record.stop_scope,
                "usd": Decimal(record.usd_nano) / NANO,
                "tokens": Decimal(record.tokens),
                "steps": Decimal(record.steps),
                "attempts": Decimal(record.attempts),
                "generation": Decimal(record.generation),
                "age": Decimal(self.now_ms - record.created_ms),
            }
        )

    def holds_for(self, record: RunRecord, call: PendingCall) -> bool:
        """Whether this call of the run is meant."""
        return self._hold({"tool": call.tool, "kind": call.kind}) and self.holds(record)

    def holds_of(self, batch: BatchRecord) -> bool:
        """Whether the batch is meant, as far as the terms are about batches.

        One whose rows name several agents has none.
        """
        return self._hold(
            {
                "batch": batch.name,
                "tenant": batch.tenant,
                "agent": batch.agent or None,
                "age": Decimal(self.now_ms - batch.created_ms),
            }
        )

    def _hold(self, facts: Mapping[str, Fact]) -> bool:
        return all(term.holds(facts[term.key]) for term in self.terms if term.key in facts)


def where(terms: Terms | None, *, keys: Sequence[str], now: Callable[[], int]) -> Where:
    """The filter that these terms are: words, quoted as in a shell, or a mapping, whose values are exact.

    Args:
        terms: what must hold; None: nothing.
        keys: what may be asked.
        now: the server's milliseconds; asked only when an age is.

    Raises:
        UsageError: for a key that is not in `keys`, a value that cannot be, terms of which not both can hold,
            or a word that is no term.
    """
    if terms is None:
        return Where()
    if isinstance(terms, Mapping):
        found = [_term(key, "=", value, keys, is_exact=True) for key, value in terms.items()]
    else:
        found = [_parsed(word, keys) for word in _words(terms)]
    for index, term in enumerate(found):
        for other in found[:index]:
            if term.is_one and other.is_one and term.key == other.key and term.value != other.value:
                raise UsageError(
                    f"{term.key} is given twice, as {other.value!r} and {term.value!r}: all terms must hold",
                    hint=f"{term.key}={other.value},{term.value} means either",
                )
    return Where(tuple(dict.fromkeys(found)), now() if any(term.key == "age" for term in found) else 0)


def is_term(word: str) -> bool:
    """Whether a word has the form of a term, as the name of a batch, a run or a call has not."""
    return _TERM.fullmatch(word) is not None and not word.startswith("run_")


def _words(terms: str | Sequence[str]) -> list[str]:
    texts = [terms] if isinstance(terms, str) else terms
    try:
        return [word for text in texts for word in shlex.split(text)]
    except ValueError as error:
        raise UsageError(
            f"the filter {' '.join(texts)!r} cannot be read: {error}", hint="quote as in a shell"
        ) from None


def _parsed(word: str, keys: Sequence[str]) -> Term:
    found = _TERM.fullmatch(word)
    if found is None or not found[4]:
        raise UsageError(f"{word!r} is no filter", hint=_HINT)
    minus, key, sign, value = found.groups()
    sign = "=" if sign == ":" else sign
    if minus:
        if sign != "=":
            raise UsageError(f"{word!r} says no twice, or of a number", hint="write -key:value or key!=value")
        sign = "!="
    return _term(key, sign, value, keys)


def _term(key: str, sign: str, value: Any, keys: Sequence[str], *, is_exact: bool = False) -> Term:
    if key not in keys:
        raise UsageError(
            f"there is no filter {key!r}{nearest(key, keys)}", hint=f"filters are {', '.join(keys)}"
        )
    term = Term(key, sign, str(value), is_exact)
    if key == "age":
        if sign not in _COMPARE:
            raise UsageError("an age is compared", hint="age>2h or age<7d")
        return Term(key, sign, value, is_exact, (Decimal(parse_span(value)),))
    if key in _COUNTS:
        return Term(key, sign, term.value, is_exact, _numbers(key, sign, term.value))
    if sign in _COMPARE:
        raise UsageError(f"{key} is no number: {sign} cannot be asked of it", hint=f"{key}={value}")
    known = _CHOICES.get(key, ())
    for word in term.alternatives[-1:] if is_exact else value.split(","):
        if known and word not in known and (is_exact or "*" not in word):
            raise UsageError(
                f"there is no {key} {word!r}{nearest(word, known)}",
                hint=f"{key} is one of {', '.join(known)}",
            )
    return term


def _numbers(key: str, sign: str, value: str) -> tuple[Decimal, ...]:
    words = [value] if sign in _COMPARE else value.split(",")
    try:
        numbers = tuple(map(Decimal, words))
    except InvalidOperation:
        numbers = ()
    if not numbers or not all(number.is_finite() for number in numbers):
        raise UsageError(f"{key} is a number, and {value!r} is none", hint=f"{key}>0.5, {key}<=3 or {key}=2")
    return numbers


def _glob(value: str) -> str:
    """For fnmatch, to which more than the star means something."""
    return value.replace("[", "[[]").replace("?", "[?]")
