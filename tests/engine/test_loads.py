"""Loads that are large: by their rows, by their mistakes, and by what is in a row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from agentq.core.errors import AgentQError, InputError
from agentq.core.records import RowEntry
from agentq.engine import spool
from agentq.engine.load import KEPT_PROBLEMS, Load
from agentq.engine.patterns import Terms
from agentq.engine.pilot import Pilot
from agentq.engine.rows import parse_row
from agentq.engine.spool import Spool
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
    read = Spool.rows

    def counted(self: Spool) -> Iterator[Any]:
        nonlocal searched
        searched += 1
        return read(self)

    monkeypatch.setattr(Spool, "rows", counted)
    for number in range(2_000):
        add(rows, number, f"c{number % 1_000}")
    with pytest.raises(InputError) as refused:
        rows.check()
    assert "row 1000" in str(refused.value)
    assert "that of row 0 too" in str(refused.value)
    assert "980 more" in str(refused.value)
    assert searched <= KEPT_PROBLEMS


def test_long_rows_are_written_a_few_at_a_time(rig: Rig, rows: Load, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(spool, "CHUNK_BYTES", 50_000)
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


def test_who_compares_many_rows_is_heard_of_meanwhile(rig: Rig, rows: Load, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(spool, "CHUNK", 2)
    for number in range(100):
        add(rows, number, f"c{number}")
    options: Any = {"agent": "a", "scopes_of": lambda *_: (), "retention_ms": RETENTION_MS}
    assert rows.write(rig.store, **options) == 100
    heard = []
    key, known = rig.store.keys.batch("b1"), rig.store.batches.known

    def noted(name: str, custom_ids: Sequence[str]) -> dict[str, tuple[str, str]]:
        who, until, was = str(rig.store.client.hget(key, "loader")).split()
        heard.append(until != "1")
        rig.store.client.hset(key, "loader", f"{who} 1 {was}")  # as if his time were over
        return known(name, custom_ids)

    monkeypatch.setattr(rig.store.batches, "known", noted)
    assert rows.write(rig.store, **options) == 0
    assert [place for place, was_heard in enumerate(heard, start=1) if was_heard] == [1, 20, 40]
    assert len(heard) == 50


def test_another_sample_may_be_asked_for_as_long_as_no_row_is_there(rig: Rig, rows: Load):
    for number in range(30):
        add(rows, number, f"c{number}")
    rig.store.batches.open(
        "b1", agent="a", tenant="acme", usd=None, tokens=None, retention_ms=RETENTION_MS, loader="killed@h:1"
    )
    rig.store.client.hset(rig.store.keys.batch("b1"), "loader", "killed@h:1 1 0")
    rows.write(rig.store, agent="a", scopes_of=lambda *_: (), retention_ms=RETENTION_MS, pilot=Pilot(count=6))
    record = rig.store.batches.read("b1")
    assert record is not None
    assert (record.pilot, record.total) == (6, 30)
    assert record.rows == 24 + 6 - record.open
    assert rig.store.client.smembers(f"{rig.store.keys.prefix}pilots") == {"b1"}


def test_a_disk_that_is_full_is_said_with_a_way_out(monkeypatch: pytest.MonkeyPatch):
    agent = make_agent(ScriptedClient(["done"]), name="a")
    monkeypatch.setattr(spool, "IN_MEMORY_BYTES", 10)
    full = Path("/dev/full").open("w+b")  # noqa: SIM115 - closed with the load
    monkeypatch.setattr("tempfile.TemporaryFile", lambda *_, **__: full)
    with Load(Terms(batch="b1", tenant="acme"), lambda *_: agent) as rows:
        with pytest.raises(AgentQError, match="do not fit into a temporary file: no space left") as refused:
            add(rows, 1, "c1", "x" * 100_000)
        assert "TMPDIR" in refused.value.hint


def test_a_file_whose_name_is_no_text_is_named_all_the_same(rows: Load):
    for number in (1, 2):
        rows.add(f"\udcff.jsonl:{number}", parse_row({"input": "x", "agent": "a", "custom_id": "c"}))
    with pytest.raises(InputError, match=r"that of \\udcff.jsonl:1 too"):
        rows.check()
