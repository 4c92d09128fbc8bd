"""Schedules and notices with real workers, a real receiver, and workers that are killed in the middle."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from signal import SIGKILL
from typing import TYPE_CHECKING, Any

import pytest

from agentq.core.webhook import secret_keys, signature
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from tests.support.fleet import Fleet

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]
pytest_plugins = ["tests.support.fleet"]

SECRET = "whsec_" + "a2V5" * 8
SETTINGS: dict[str, Any] = {"lease_seconds": 2, "tick_seconds": 0.2, "webhook_secret": SECRET}
LOCAL = {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
"""A proxy of the machine is not asked for what is on this machine."""


class Receiver:
    """An HTTP server that keeps what it is sent, and answers with these, then with 200."""

    def __init__(self, *answers: int) -> None:
        self.answers = list(answers)
        self.got: list[tuple[dict[str, str], bytes]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.got.append(({k.lower(): v for k, v in self.headers.items()}, body))
                self.send_response(receiver.answers.pop(0) if receiver.answers else 200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/ended"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def ids(self) -> list[str]:
        return [headers["webhook-id"] for headers, _ in self.got]

    @property
    def bodies(self) -> list[Any]:
        return [json.loads(body) for _, body in self.got]

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    opened = Receiver()
    yield opened
    opened.stop()


def open_fleet(make_fleet: type[Fleet]) -> Fleet:
    fleet = make_fleet(**SETTINGS)
    fleet.env |= LOCAL
    return fleet


def write_rows(home: Path, count: int) -> None:
    lines = []
    for row in range(count):
        metadata = {"row": row, "steps": 1, "seconds": 0}
        lines.append(json.dumps({"custom_id": str(row), "input": f"row {row}", "metadata": metadata}))
    (home / "orders.jsonl").write_text("\n".join(lines) + "\n")


def over(fleet: Fleet, batch: str) -> bool:
    record = fleet.app.store.batches.read(batch)
    return record is not None and record.sealed and record.ended == record.total


def again(fleet: Fleet, batch: str) -> None:
    """What was put off, or was on its way with a worker that is dead, is due."""
    fleet.app.store.client.zadd(fleet.app.store.keys.notices, {batch: 1}, xx=True)


def test_a_schedule_is_made_by_a_worker_and_somebody_is_told_when_its_batch_is_over(
    make_fleet: type[Fleet], receiver: Receiver
):
    fleet = open_fleet(make_fleet)
    write_rows(fleet.home, 5)
    typed = fleet.type(
        "submit", "orders.jsonl", "--every", "0 8 * * 1-5", "--tz", "Europe/Berlin", "--max-usd", "1",
        "--notify", receiver.url,
    )  # fmt: skip
    assert typed.stdout.startswith("schedule orders: 5 rows, 0 8 * * 1-5 (Europe/Berlin)\n  next ")
    assert " 08:00 CE" in typed.stdout
    assert "no worker is alive" in typed.stderr
    assert "there already" in fleet.type(
        "submit", "orders.jsonl", "--every", "0 8 * * 1-5", "--tz", "Europe/Berlin", "--max-usd", "1",
        "--notify", receiver.url,
    ).stdout  # fmt: skip
    fleet.start_worker()
    fleet.type("schedules", "pause", "orders")
    batch = json.loads(fleet.type("schedules", "run", "orders", "--json").stdout)["batch"]
    wait_until(lambda: receiver.got, "the notice", 60)
    fleet.check(batch, steps=1)
    (body,) = receiver.bodies
    assert (body["type"], body["batch"], body["total"], body["exit_code"]) == ("batch.ended", batch, 5, 0)
    headers, sent = receiver.got[0]
    expected = signature(secret_keys(SECRET), headers["webhook-id"], int(headers["webhook-timestamp"]), sent)
    assert headers["webhook-signature"] == expected
    (listed,) = json.loads(fleet.type("schedules", "--json").stdout)
    assert (listed["last_batch"], listed["last"]["ended"], listed["next_at"]) == (batch, 5, None)
    assert fleet.type("schedules", "resume", "orders").stdout.startswith("orders goes on: ")
    assert "5 of 5 ended" in fleet.type("schedules").stdout
    assert fleet.type("schedules", "remove", "orders", "-y").stdout == "orders is gone; its batches stay\n"
    refused = fleet.type("schedules", "show", "orders", code=2)
    assert "there is no schedule 'orders'" in refused.stderr
    assert over(fleet, batch)


@pytest.mark.parametrize("point", ["schedule.after_claim", "submit.after_chunk#2", "schedule.after_load"])
def test_a_worker_that_is_killed_in_the_middle_leaves_one_whole_batch_to_the_next(
    make_fleet: type[Fleet], point: str
):
    fleet = open_fleet(make_fleet)
    count = 1_200  # three chunks
    write_rows(fleet.home, count)
    fleet.type("submit", "orders.jsonl", "--every", "0 8 * * *")
    name, _, nth = point.partition("#")
    doomed = fleet.start_worker(AGENTQ_FAILPOINTS=f"{name}=kill" + (f"#{nth}" if nth else ""))
    batch = json.loads(fleet.type("schedules", "run", "orders", "--json").stdout)["batch"]
    assert doomed.wait(60) == -SIGKILL
    before = fleet.app.store.batches.read(batch)
    assert before is None or not before.sealed or point == "schedule.after_load"
    fleet.start_worker(concurrency=16)
    wait_until(lambda: over(fleet, batch), "the batch to be over", 150)
    record = fleet.app.batch(batch).record()
    assert (record.total, record.stop_reasons) == (count, {"finished": count})
    schedule = fleet.app.schedules()[0]
    wait_until(lambda: schedule.record().made == 1, "the schedule to move on")
    assert fleet.app.store.batches.names() == [batch]
    bought = [int(row) for row, _, _ in fleet.lines("bill")]
    assert sorted(set(bought)) == list(range(count))


@pytest.mark.parametrize("point, received", [("notice.after_claim", 1), ("notice.after_send", 2)])
def test_a_worker_that_is_killed_with_a_notice_leaves_it_to_the_next(
    make_fleet: type[Fleet], receiver: Receiver, point: str, received: int
):
    fleet = open_fleet(make_fleet)
    fleet.start_worker(AGENTQ_WEBHOOK_SECRET="")
    fleet.submit(2, 1, notify=receiver.url)
    wait_until(lambda: over(fleet, "b"), "the batch to be over", 60)
    key = fleet.app.store.keys.batch("b")
    wait_until(
        lambda: (
            fleet.app.store.client.hget(key, "notify_error") == "no worker has the setting webhook_secret"
        ),
        "a worker without a secret to say so",
    )
    doomed = fleet.start_worker(AGENTQ_FAILPOINTS=f"{point}=kill")
    assert doomed.wait(60) == -SIGKILL
    fleet.start_worker()
    again(fleet, "b")
    wait_until(lambda: fleet.app.store.client.hexists(key, "notified"), "the notice to be received", 60)
    assert len(receiver.got) == received
    assert len(set(receiver.ids)) == 1


def test_a_receiver_that_fails_is_told_again_and_a_retried_batch_is_another_notice(
    make_fleet: type[Fleet], receiver: Receiver
):
    fleet = open_fleet(make_fleet)
    receiver.answers = [500]
    fleet.start_worker()
    fleet.submit(3, 4, notify=receiver.url, seconds=0.5)
    fleet.app.batch("b").cancel()
    wait_until(lambda: receiver.got, "the first try", 60)
    key = fleet.app.store.keys.batch("b")
    wait_until(lambda: fleet.app.store.client.hexists(key, "notify_error"), "the failure to be kept")
    again(fleet, "b")
    wait_until(lambda: fleet.app.store.client.hexists(key, "notified"), "the second try", 60)
    assert receiver.ids[0] == receiver.ids[1]
    assert receiver.bodies[1]["stop_reasons"] == {"cancelled": 3}
    assert fleet.app.batch("b").retry()
    wait_until(lambda: len(receiver.got) == 3, "the notice of the retry", 60)
    assert receiver.ids[2] != receiver.ids[1]
    assert (receiver.bodies[2]["number"], receiver.bodies[2]["stop_reasons"]) == (2, {"finished": 3})
