"""What tests of bulk have in common: a model that writes down when it is at work, files of rows, dumps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from textwrap import dedent
from typing import TYPE_CHECKING, Any

from tests.support.processes import ProcessGroup
from tests.support.wait import wait_until

if TYPE_CHECKING:
    import redis

    from tests.support.fleet import Fleet

ROW_NANO = 1_300_000
"""What a run of `one` costs: 400 tokens of input and 90 of output."""
APP = dedent(
    '''
    """A model that says when it is at work, and waits where it is told to; an agent that asks a person."""
    import json, os, time
    from agentq import AgentQ, Budgets, tool
    from agentq.provider.pricing import ModelPricing
    from agentq.provider.types import ChatResult, Role, ToolCall, Usage

    PRICE = ModelPricing("gauge-1", "1", "10", 128_000)
    HERE = os.path.dirname(os.path.abspath(__file__))

    def note(line):
        fd = os.open(os.path.join(HERE, "calls"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(fd, line.encode() + b"\\n")
        os.close(fd)

    class Gauge:
        """Notes the begin and the end of each call: `+ whose row` and `- whose row`."""
        provider, model = "test", "gauge-1"

        def bound(self, req):
            return Usage(int(req.metadata.get("tokens", 400)), 90)

        def complete(self, req):
            whose, row = req.metadata.get("of", "-"), req.metadata.get("row", 0)
            note(f"+ {whose} {row}")
            time.sleep(float(req.metadata.get("seconds", 0)))
            while os.path.exists(os.path.join(HERE, "gate")):
                time.sleep(0.02)
            note(f"- {whose} {row}")
            usage = Usage(int(req.metadata.get("tokens", 400)), 90)
            calls = ()
            if req.metadata.get("asks") and not any(m.role is Role.TOOL for m in req.messages):
                calls = (ToolCall("", "refund", json.dumps({"row": row})),)
            return ChatResult("" if calls else "done", usage, "test", "gauge-1", tool_calls=calls)

    @tool(side_effect=True, requires_approval=True)
    def refund(row: int) -> str:
        """Give money back."""
        return "refunded"

    app = AgentQ("bulk", pricing={"gauge-1": PRICE})
    celery = app.celery
    app.agent("one", model=Gauge(), tools=[refund],
              budgets=Budgets(max_steps=5, max_tokens=None, max_usd="1", max_seconds=None))
    '''
)


def rows(count: int, of: str = "-", *, first: int = 0, **metadata: Any) -> list[dict[str, Any]]:
    """Rows with the ids `first` to `first + count - 1`."""
    return [
        {"custom_id": str(row), "input": f"row {row}", "metadata": {"of": of, "row": row, **metadata}}
        for row in range(first, first + count)
    ]


def write_rows(fleet: Fleet, file: str, items: Sequence[dict[str, Any]]) -> None:
    """A JSONL file beside the app."""
    lines = "".join(json.dumps(item) + "\n" for item in items)
    (fleet.home / file).write_text(lines)


def submit(
    fleet: Fleet, batch: str, count: int, of: str = "-", *, tenant: str | None = None, **more: Any
) -> Any:
    """A batch of rows that are one call each; `more` are options of `submit_many`, others of the rows."""
    options = {name: more.pop(name) for name in list(more) if name in _OF_BATCH}
    return fleet.app.submit_many("one", rows(count, of, **more), batch=batch, tenant=tenant, **options)


_OF_BATCH = {"max_usd", "max_in_flight", "max_open", "priority", "at", "on_exhausted"}


def typed(
    fleet: Fleet, *args: str, code: int = 0, stdin: bytes = b"", **env: str
) -> subprocess.CompletedProcess[bytes]:
    """`agentq …` with an input and an environment of its own; it must end with `code` and no traceback."""
    done = subprocess.run(
        argv(*args),
        cwd=fleet.home,
        env=environment(fleet, **env),
        input=stdin,
        capture_output=True,
        timeout=90,
        check=False,
    )
    said = done.stderr.decode()
    assert done.returncode == code, f"{args} → {done.returncode}\n{done.stdout.decode()}\n{said}"
    assert "Traceback" not in said
    return done


def begun(fleet: Fleet, *args: str, **env: str) -> ProcessGroup:
    """`agentq …`, going on by itself. Whoever begins it ends it."""
    return ProcessGroup(argv(*args), cwd=fleet.home, env=environment(fleet, **env))


def argv(*args: str) -> list[str]:
    """The command line."""
    return [sys.executable, "-m", "agentq", "-A", "fleet_app:app", *args]


def environment(fleet: Fleet, **env: str) -> dict[str, str]:
    """That of a command beside these workers."""
    from tests.support.fleet import ROOT

    return {**os.environ, **fleet.env, "PYTHONPATH": str(ROOT), **env}


def calls(fleet: Fleet) -> list[tuple[str, str, str]]:
    """The model's notes so far: sign, whose, row."""
    return [(sign, whose, row) for sign, whose, row in fleet.lines("calls")]


def begins(fleet: Fleet) -> list[str]:
    """Whose each call was, in the order in which they began."""
    return [whose for sign, whose, _ in calls(fleet) if sign == "+"]


def at_work(fleet: Fleet) -> Counter[str]:
    """How many calls are under way now, by whose they are."""
    now: Counter[str] = Counter()
    for sign, whose, _ in calls(fleet):
        now[whose] += 1 if sign == "+" else -1
    return +now


def close_gate(fleet: Fleet) -> None:
    """From now on no call ends."""
    (fleet.home / "gate").touch()


def open_gate(fleet: Fleet) -> None:
    """They end again."""
    (fleet.home / "gate").unlink()


def let_ticks_pass(fleet: Fleet, count: int = 3) -> None:
    """Return when a worker has looked so many times at what is due: whatever it would do, it has done."""
    store = fleet.app.store
    for _ in range(count):
        before = store.client.hget(store.keys.clock, "tick")
        wait_until(lambda b=before: store.client.hget(store.keys.clock, "tick") != b, "a tick", 30)  # type: ignore[misc]


def dump(fleet: Fleet, batch: str) -> dict[str, Any]:
    """Every key of a batch and the feeder's turns, with all that is in them."""
    store = fleet.app.store
    client: redis.Redis = store.client
    found: dict[str, Any] = {}
    for pattern in (
        f"batch:{batch}",
        f"batch:{batch}:*",
        f"scope:batch:{batch}*",
        "turns*",
        "starts",
        "serial:*",
    ):
        for key in client.scan_iter(match=_escaped(store.keys.prefix) + pattern, count=1000):
            found[str(key)] = client.dump(key) if client.type(key) == "string" else _content(client, str(key))
    return found


def _escaped(prefix: str) -> str:
    return prefix.replace("[", "\\[")


def _content(client: redis.Redis, key: str) -> Any:
    match client.type(key):
        case "hash":
            return client.hgetall(key)
        case "list":
            return client.lrange(key, 0, -1)
        case "set":
            return client.smembers(key)
        case "zset":
            return client.zrange(key, 0, -1, withscores=True)
        case other:
            raise AssertionError(f"{key} is a {other!r}")


def check_whole(fleet: Fleet, batch: str, count: int) -> None:
    """What must hold of a batch when all are over: rows ended once, no slot, no turn left, books right."""
    from agentq.store.checkup import examine

    store = fleet.app.store
    record = fleet.app.batch(batch).record()
    assert (record.total, record.ended, record.rows, record.open) == (count, count, 0, 0), record
    assert sum(record.stop_reasons.values()) == count
    done = list(store.batches.done(batch))
    assert len(done) == len(set(done)) == count
    prefix = store.keys.prefix
    left = [str(key) for key in store.client.scan_iter(match=f"{prefix}slots*", count=1000)]
    left += [str(key) for key in store.client.scan_iter(match=f"{prefix}turns*", count=1000)]
    assert left == []
    assert store.client.exists(f"{prefix}flying") == 0
    assert examine(store).findings == []
