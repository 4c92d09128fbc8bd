"""How often a step asks Redis: a bound that is part of the design."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import redis
from redis.connection import UnixDomainSocketConnection

from agentq.agent import Budgets
from agentq.engine.load import Load
from agentq.engine.patterns import Terms
from agentq.engine.rows import parse_row
from agentq.engine.spool import CHUNK
from agentq.tools import tool
from tests.support.harness import RETENTION_MS, Moody, Rig


@tool
def look(id: str) -> str:
    """Look."""
    return id


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """What is sent to the server inside the block: one entry each time that a reply is waited for."""
    sent: list[object] = []
    original = UnixDomainSocketConnection.send_packed_command

    def send(self, command, check_health=True):
        sent.append(command)
        return original(self, command, check_health)

    with monkeypatch.context() as patch:
        patch.setattr(UnixDomainSocketConnection, "send_packed_command", send)
        yield sent


@pytest.fixture
def warm(rig: Rig) -> Rig:
    """A rig whose server knows the scripts and whose connections are open."""
    rig.agent(Moody([[("look", '{"id": "1"}')], "done"]), look)
    rig.submit(budgets=Budgets(max_steps=1))
    rig.submit()
    rig.drain()
    rig.store.client.ping()  # scripts keep their connection; this is the other
    return rig


def test_a_step_without_tools_takes_three_round_trips(warm: Rig, monkeypatch: pytest.MonkeyPatch):
    warm.agent(Moody(["done"]), name="b")
    run = warm.submit(agent="b")
    with counted(monkeypatch) as sent:
        warm.step()
    assert warm.record(run).stop_reason == "finished"
    assert len(sent) == 3


def test_a_step_with_tools_takes_one_more(warm: Rig, monkeypatch: pytest.MonkeyPatch):
    warm.submit()
    with counted(monkeypatch) as sent:
        warm.step()
    assert warm.queue
    assert len(sent) == 4


def test_a_closing_turn_takes_three(warm: Rig, monkeypatch: pytest.MonkeyPatch):
    run = warm.submit(budgets=Budgets(max_steps=1))
    warm.step()
    with counted(monkeypatch) as sent:
        warm.step()
    assert warm.record(run).stop_reason == "step_budget"
    assert len(sent) == 3


def test_a_message_for_a_step_that_is_done_takes_one(warm: Rig, monkeypatch: pytest.MonkeyPatch):
    run = warm.submit()
    warm.drain()
    warm.queue.append((run, 0))
    with counted(monkeypatch) as sent:
        warm.step()
    assert len(sent) == 1


def test_a_chunk_of_rows_is_written_in_one_and_a_load_takes_two_more(
    warm: Rig, monkeypatch: pytest.MonkeyPatch
):
    chunks = 3
    with Load(Terms(batch="b1", tenant="acme"), lambda *_: warm.agents["a"]) as rows:
        for number in range(chunks * CHUNK):
            rows.add(f"row {number}", parse_row({"input": "do it", "agent": "a", "custom_id": f"c{number}"}))
        with counted(monkeypatch) as sent:
            new = rows.write(warm.store, agent="a", scopes_of=lambda *_: (), retention_ms=RETENTION_MS)
    assert new == chunks * CHUNK
    # `open` and `seal`; each script is sent once by its hash and, unknown to the server, once as a whole.
    assert len(sent) <= chunks + 2 + 3


def test_what_is_counted_is_every_command(warm: Rig, monkeypatch: pytest.MonkeyPatch):
    assert isinstance(warm.store.client, redis.Redis)
    with counted(monkeypatch) as sent:
        warm.store.client.ping()
        warm.store.ledger.account("global")
        warm.store.runs.read("r1")
    assert len(sent) == 3
