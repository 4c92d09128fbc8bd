"""Families of tokenizers: how many tokens a text can have at most, by its bytes alone.

Each rate is a bound for every text, not an average. It rests on how the family's tokenizers are built, or,
where that is not published, on the worst that was measured.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from agentq.provider.catalogue import built_in
from agentq.provider.client import LLMClient

_ASCII = bytes(range(128))


@dataclass(frozen=True, slots=True)
class Family:
    """Tokens of a text: `ascii` for each byte of an ASCII letter, `other` for each other byte, and `text`."""

    name: str
    ascii: int
    other: int
    text: int = 0

    def tokens(self, text: str) -> int:
        """The most tokens that a text can have; none for no text."""
        # A lone surrogate cannot be encoded, yet must be counted: it is replaced before it is sent.
        data = text.encode("utf-8", "surrogatepass")
        if not data:
            return 0
        size = len(data)
        if self.ascii == self.other or text.isascii():
            return size * self.ascii + self.text
        others = len(data.translate(None, _ASCII))
        return (size - others) * self.ascii + others * self.other + self.text

    def worst(self, size: int, texts: int) -> int:
        """The most tokens that `texts` texts of `size` bytes together can have, whatever they say."""
        return size * max(self.ascii, self.other) + texts * self.text


BYTE_BPE = Family("byte-bpe", 1, 1)
"""Byte-level BPE: a token is one byte or several, never less."""
SENTENCEPIECE = Family("sentencepiece", 1, 1, text=1)
"""SentencePiece with byte fallback: the same, and a space that is put before the text."""
ANTHROPIC = Family("anthropic", 2, 4)
"""Not published; more than one token a byte has been measured: 2.0 for ASCII, 3.25 for other bytes."""
UNKNOWN = Family("unknown", 4, 4)
"""No tokenizer that we know makes more than four tokens of one byte."""

FAMILIES = {family.name: family for family in (BYTE_BPE, SENTENCEPIECE, ANTHROPIC, UNKNOWN)}


def families_of(client: LLMClient) -> tuple[Family, ...]:
    """The families of all models that may answer: its own, and those of its fallbacks.

    A client that has an attribute `family` is believed; else its model is looked up in the built-in
    catalogue; else it is unknown.

    Raises:
        ValueError: for a `family` that does not exist.
    """
    chain: tuple[LLMClient, ...] = getattr(client, "chain", (client,))
    return tuple({_family_of(link): None for link in chain})


def _family_of(client: LLMClient) -> Family:
    named: str | None = getattr(client, "family", None)
    if named is None:
        return _known_family(client.provider, client.model)
    if named not in FAMILIES:
        raise ValueError(
            f"{client.provider}/{client.model}: there is no tokenizer family {named!r}; "
            f"the families are {', '.join(FAMILIES)}"
        )
    return FAMILIES[named]


@functools.lru_cache(maxsize=1024)
def _known_family(provider: str, model: str) -> Family:
    named = built_in().named
    entries = named.get(f"{provider}:{model}") or named.get(model, ())
    # One id of several providers is one model; where the entries disagree, nobody knows.
    found = {entry.family for entry in entries}
    return FAMILIES.get(found.pop(), UNKNOWN) if len(found) == 1 else UNKNOWN
