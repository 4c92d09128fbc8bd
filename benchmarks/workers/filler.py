"""Text for messages, which no server and no disk can squeeze."""

from __future__ import annotations

import base64
import random

_NOISE = base64.b64encode(random.Random(20).randbytes(768 * 1024)).decode()


def text(number: int, size: int = 1000) -> str:
    """`size` characters; the same for the same number."""
    start = number * 7919 % (len(_NOISE) - size)
    return _NOISE[start : start + size]
