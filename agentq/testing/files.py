"""Files to which many processes add lines: a line is there whole or not at all, also after `kill -9`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def append(path: Path, value: Any) -> None:
    """Add one value as a line of JSON. It is there when this returns."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, json.dumps(value, ensure_ascii=False).encode() + b"\n")
    finally:
        os.close(file)


def read(path: Path) -> list[Any]:
    """The values so far; none when there is no file yet."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
