"""The server's append-only file: what it says, and how it is cut, so that acknowledged writes are lost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Transaction:
    """What the server wrote at once: the commands of one script, or one command."""

    start: int
    commands: tuple[tuple[str, ...], ...]

    def posted(self) -> list[dict[str, str]]:
        """The entries of the ledger's log that it adds."""
        entries = []
        for command in self.commands:
            if command[0].upper() == "XADD" and command[1].endswith(":log"):
                fields = command[3:] if command[2] not in {"NOMKSTREAM", "MAXLEN"} else command[5:]
                entries.append(dict(zip(fields[::2], fields[1::2], strict=True)))
        return entries

    def touches(self, key: str) -> bool:
        """Whether it writes this key, which is named without its namespace."""
        return any(len(command) > 1 and command[1].endswith(f"}}:{key}") for command in self.commands)


class AppendOnlyFile:
    """The file into which the server on `home` writes now. To be read and cut while the server is down."""

    def __init__(self, home: Path) -> None:
        found = sorted((home / "redis" / "appendonlydir").glob("*.incr.aof"))
        assert found, f"no append-only file under {home}"
        self.path = found[-1]

    def transactions(self) -> list[Transaction]:
        """All that can be read of it; a half-written end is left out."""
        data = self.path.read_bytes()
        found: list[Transaction] = []
        inside: list[tuple[str, ...]] | None = None
        start = 0
        for at, command in _commands(data):
            word = command[0].upper()
            if word == "MULTI":
                start, inside = at, []
            elif word == "EXEC":
                assert inside is not None
                found.append(Transaction(start, tuple(inside)))
                inside = None
            elif inside is not None:
                inside.append(command)
            else:
                found.append(Transaction(at, (command,)))
        return found

    def cut(self, transaction: Transaction) -> None:
        """Forget this and all that was written after it."""
        with self.path.open("r+b") as file:
            file.truncate(transaction.start)


def _commands(data: bytes) -> Iterator[tuple[int, tuple[str, ...]]]:
    at = 0
    while at < len(data):
        start = at
        try:
            if data[at : at + 1] == b"#":  # an annotation of the server's
                at = data.index(b"\r\n", at) + 2
                continue
            end = data.index(b"\r\n", at)
            count, at = int(data[at + 1 : end]), end + 2
            words = []
            for _ in range(count):
                end = data.index(b"\r\n", at)
                size, at = int(data[at + 1 : end]), end + 2
                if at + size + 2 > len(data):
                    return
                words.append(data[at : at + size].decode(errors="replace"))
                at += size + 2
        except ValueError:
            return
        yield start, tuple(words)
