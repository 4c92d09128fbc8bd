"""Text that can be stored and sent."""

from __future__ import annotations


def encodable(text: str) -> str:
    """The text with a `?` for each lone surrogate: JSON can carry one, UTF-8 cannot."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
