"""What a planted bug is.

A mutant is one exact change of one file. Its text must stand there once: when the code has changed, the
runner says so and the mutant is written anew, so that none is lost in silence.
"""

from __future__ import annotations

from dataclasses import dataclass

LUA = "agentq/store/lua"


@dataclass(frozen=True, slots=True)
class Mutant:
    """One planted bug.

    `text`, which must occur once in `file`, becomes `planted`; `tests` are what must notice it.
    """

    name: str
    file: str
    text: str
    planted: str
    tests: tuple[str, ...]
