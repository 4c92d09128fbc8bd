"""Loads that are large: by their rows, by their mistakes, and by what is in a row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from agentq.core.errors import InputError
from agentq.core.records import RowEntry
from agentq.engine import load
from agentq.engine.load import KEPT_PROBLEMS, Load
from agentq.engine.patterns import Terms
from agentq.engine.rows import parse_row
from agentq.provider.scripted import ScriptedClient
from tests.support.harness import RETENTION_MS, Rig, make_agent


@pytest.fixture
def rows() -> Iterator[Load]:
    agent = make_agent(ScriptedClient(["done"]), name="a")
    with Load(Terms(batch="b1", tenant="acme"), lambda *_: agent) as opened:
        yield opened


def add(rows: Load, number: int, custom_id: str, text: str = "hello") -> None:
    rows.add(f"row {number}", parse_row({"input": text, "agent": "a", "custom_id": custom_id}))


def test_a_file_that_is_there_twice_is_not_searched_for_each_of_its_rows(
    rows: Load, monkeypatch: pytest.MonkeyPatch
):
    searched = 0
    read = Load._rows

    def counted(self: Load) -> Iterator[Any]:
        nonlocal searched
        searched += 1
        return read(self)

    monkeypatch.setattr(Load, "_rows", counted)
    for number in range(2_000):
        add(rows, number, f"c{number % 1_000}")
    with pytest.raises(InputError) as refused:
        rows.check()
    assert "row 1000" in str(refused.value)
    assert "that of row 0 too" in str(refused.value)
    assert "980 more" in str(refused.value)
    assert searched <= KEPT_PROBLEMS


def test_long_rows_are_written_a_few_at_a_time(rig: Rig, rows: Load, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(load, "CHUNK_BYTES", 50_000)
    sizes: list[tuple[int, int]] = []
    write = rig.store.batches.add

    def measured(
        name: str, entries: Sequence[RowEntry], templates: Mapping[str, str], **more: Any
    ) -> list[bool]:
        sizes.append((len(entries), sum(len(entry.payload) for entry in entries)))
        return write(name, entries, templates, **more)

    monkeypatch.setattr(rig.store.batches, "add", measured)
    texts = ["x" * 20_000] * 5 + ["y" * 90_000] + ["z"] * 600
    for number, text in enumerate(texts):
        add(rows, number, f"c{number}", text)
    rows.write(rig.store, agent="a", scopes_of=lambda *_: (), retention_ms=RETENTION_MS)
    assert sum(count for count, _ in sizes) == len(texts)
    assert all(count == 1 or size <= 50_000 for count, size in sizes)
    assert max(count for count, _ in sizes) > 100
    record = rig.store.batches.read("b1")
    assert record is not None
    assert record.total == len(texts)
