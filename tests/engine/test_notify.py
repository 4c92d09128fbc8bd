"""Notices on their way: signed, tried again, to nobody who may not be called."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from agentq.core.errors import UsageError
from agentq.core.failpoints import FailpointError
from agentq.core.lifecycle import StopReason
from agentq.core.records import RowEntry
from agentq.core.settings import Settings
from agentq.engine import notify as module
from agentq.engine.notify import RETRY_SECONDS, Notifier, check_notify
from agentq.store import Store
from tests.support.harness import RETENTION_MS

KEY = b"k" * 32
SECRET = "whsec_" + base64.b64encode(KEY).decode()
URL = "https://hooks.example.com/x"
FAR = 4_000_000_000_000


class Receiver:
    """What is at the other end: it answers with these, and then with 204."""

    def __init__(self, *answers: int | Exception | Callable[[httpx.Request], Any]) -> None:
        self.answers = list(answers)
        self.requests: list[httpx.Request] = []

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self.answers.pop(0) if self.answers else 204
        if isinstance(answer, Exception):
            raise answer
        if callable(answer):
            answer = await answer(request)
        return httpx.Response(answer, headers={"location": "http://169.254.169.254/"})

    @property
    def bodies(self) -> list[Any]:
        return [json.loads(request.content) for request in self.requests]


def over(store: Store, name: str = "b", *, url: str = URL, reason: StopReason = StopReason.CANCELLED) -> None:
    """A batch of two rows that have ended."""
    store.batches.open(
        name, agent="a", tenant="acme", usd=None, tokens=None, retention_ms=RETENTION_MS,
        options={"at": FAR, "notify": url},
    )  # fmt: skip
    rows = [RowEntry(f"run_{name}{row}_1", row, "h", 0, '["t"]') for row in ("x", "y")]
    store.batches.add(name, rows, {"t": "[]"})
    store.batches.seal(name)
    store.batches.drop(name, reason)


def notifier(store: Store, receiver: Receiver, **settings: Any) -> Notifier:
    return Notifier(
        store, Settings(webhook_secret=SECRET, **settings), transport=httpx.MockTransport(receiver)
    )


def said(store: Store, name: str = "b") -> dict[str, str]:
    found: dict[str, str] = store.client.hgetall(store.keys.batch(name))  # type: ignore[assignment]
    return {key: found[key] for key in ("notified", "notify_error") if key in found}


def again(store: Store, *names: str) -> None:
    store.client.zadd(store.keys.notices, dict.fromkeys(names or ("b",), 1), xx=True)


def test_a_batch_that_is_over_is_told_once_with_its_figures_signed(store: Store):
    receiver = Receiver()
    over(store)
    notifier(store, receiver).send_due()
    notifier(store, receiver).send_due()
    (request,) = receiver.requests
    assert (request.method, str(request.url)) == ("POST", URL)
    assert request.headers["content-type"] == "application/json"
    assert request.headers["user-agent"].startswith("agentq/")
    (body,) = receiver.bodies
    created, at = body.pop("created_ms"), body.pop("at")
    assert body == {
        "type": "batch.ended",
        "batch": "b",
        "tenant": "acme",
        "agent": "a",
        "number": 1,
        "total": 2,
        "ended": 2,
        "stop_reasons": {"cancelled": 2},
        "failed": 0,
        "usd": "0.000000",
        "exit_code": 0,
    }
    assert created
    assert at.endswith("+00:00")
    name, timestamp = request.headers["webhook-id"], request.headers["webhook-timestamp"]
    signed = b".".join([name.encode(), timestamp.encode(), request.content])
    digest = base64.b64encode(hmac.new(KEY, signed, hashlib.sha256).digest()).decode()
    assert request.headers["webhook-signature"] == f"v1,{digest}"
    assert name.startswith("msg_")
    assert "." not in name
    assert abs(int(timestamp) - store.watch.server_ms() / 1000) < 60
    assert set(said(store)) == {"notified"}


@pytest.mark.parametrize(
    "answer, why",
    [
        (500, "HTTP 500"),
        (404, "HTTP 404"),
        (307, "HTTP 307, and redirects are not followed"),
        (httpx.ConnectError("refused"), "ConnectError: refused"),
        (httpx.ReadTimeout("slow"), "no answer within 10 s"),
        (OSError("x" * 500), "OSError: " + "x" * 191),
    ],
)
def test_what_is_not_received_is_tried_again_under_the_same_id(store: Store, answer: Any, why: str):
    receiver = Receiver(answer)
    over(store)
    notifier(store, receiver).send_due()
    assert said(store) == {"notify_error": why}
    notifier(store, receiver).send_due()
    assert len(receiver.requests) == 1, "it is put off"
    again(store)
    notifier(store, receiver).send_due()
    first, second = receiver.requests
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert set(said(store)) == {"notified"}


def test_the_waits_grow_and_come_to_a_day(store: Store):
    assert list(RETRY_SECONDS) == sorted(RETRY_SECONDS)
    over(store)
    receiver = Receiver(*[503] * 20)
    for tries in range(12):
        notifier(store, receiver).send_due()
        due = store.client.zscore(store.keys.notices, "b")
        assert due is not None
        wanted = 1000 * RETRY_SECONDS[min(tries, len(RETRY_SECONDS) - 1)]
        assert 0.85 * wanted < due - store.watch.server_ms() < 1.15 * wanted
        again(store)
    assert len(receiver.requests) == 12


def test_a_receiver_that_is_gone_is_left_alone(store: Store):
    receiver = Receiver(410)
    over(store)
    notifier(store, receiver).send_due()
    assert said(store) == {"notify_error": "given up: HTTP 410"}
    assert store.client.exists(store.keys.notices) == 0


def test_who_answers_byte_by_byte_holds_nobody_up(store: Store, monkeypatch: pytest.MonkeyPatch):
    async def trickle(_: httpx.Request) -> int:
        await asyncio.sleep(3600)
        return 200

    monkeypatch.setattr(module, "SECONDS", 0.05)
    receiver = Receiver(trickle)
    over(store)
    notifier(store, receiver).send_due()
    assert said(store) == {"notify_error": "no answer within 0.05 s"}


def test_what_was_received_is_noted_down_before_a_name_server_has_answered(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    """A look-up of a name is a thread that cannot be stopped, and the end of the loop waits for it."""
    noted = threading.Event()
    seen = []

    async def look_up(_: httpx.Request) -> int:
        def wait() -> None:
            seen.append(noted.wait(30))

        await asyncio.get_running_loop().run_in_executor(None, wait)
        return 204

    failed = store.notices.failed

    def note(*args: Any) -> None:
        failed(*args)
        noted.set()

    monkeypatch.setattr(module, "SECONDS", 0.05)
    monkeypatch.setattr(store.notices, "failed", note)
    over(store)
    notifier(store, Receiver(look_up)).send_due()
    assert seen == [True]


def test_a_key_that_was_refused_once_is_told_however_many_runs_have_ended_since(store: Store):
    receiver = Receiver()
    over(store)
    store.client.hset(store.keys.batch("b"), "m:refused", 1)
    notifier(store, receiver).send_due()
    assert receiver.bodies[0]["exit_code"] == 8


def test_one_receiver_that_fails_costs_the_others_nothing(store: Store):
    def answer(request: httpx.Request) -> Any:
        async def status() -> int:
            return 500 if "bad" in str(request.url) else 204

        return status()

    receiver = Receiver(*[answer] * 3)
    for name in ("one", "bad", "two"):
        over(store, name, url=f"https://hooks.example.com/{name}")
    notifier(store, receiver).send_due()
    assert [set(said(store, name)) for name in ("one", "bad", "two")] == [
        {"notified"}, {"notify_error"}, {"notified"},
    ]  # fmt: skip


def test_a_host_that_is_not_allowed_any_more_is_not_called(store: Store):
    receiver = Receiver()
    over(store)
    notifier(store, receiver, webhook_hosts="*.example.org").send_due()
    assert receiver.requests == []
    assert "webhook_hosts does not have 'hooks.example.com'" in said(store)["notify_error"]
    again(store)
    notifier(store, receiver, webhook_hosts="hooks.example.com").send_due()
    assert len(receiver.requests) == 1


def test_without_a_secret_nothing_is_sent(store: Store):
    receiver = Receiver()
    over(store)
    Notifier(store, Settings(), transport=httpx.MockTransport(receiver)).send_due()
    assert receiver.requests == []
    assert said(store) == {"notify_error": "no worker has the setting webhook_secret"}


@pytest.mark.parametrize("point, sent", [("notice.after_claim", 1), ("notice.after_send", 2)])
def test_a_worker_that_dies_leaves_it_to_the_next(
    store: Store, monkeypatch: pytest.MonkeyPatch, point: str, sent: int
):
    receiver = Receiver()
    over(store)
    monkeypatch.setenv("AGENTQ_FAILPOINTS", f"{point}=raise")
    with pytest.raises(FailpointError):
        notifier(store, receiver).send_due()
    monkeypatch.delenv("AGENTQ_FAILPOINTS")
    notifier(store, receiver).send_due()
    assert len(receiver.requests) == sent - 1, "the dead one has it for a while"
    again(store)
    notifier(store, receiver).send_due()
    assert len(receiver.requests) == sent
    assert len({request.headers["webhook-id"] for request in receiver.requests}) == 1
    assert set(said(store)) == {"notified"}


def test_each_end_of_a_batch_has_an_id_of_its_own(store: Store):
    receiver = Receiver()
    over(store)
    notifier(store, receiver).send_due()
    store.batches.revive("b")
    store.batches.drop("b", StopReason.COST_BUDGET)
    notifier(store, receiver).send_due()
    over(store, "c")
    notifier(store, receiver).send_due()
    assert len({request.headers["webhook-id"] for request in receiver.requests}) == 3
    assert [(body["number"], body["exit_code"]) for body in receiver.bodies] == [(1, 0), (2, 4), (1, 0)]
    assert receiver.bodies[1]["stop_reasons"] == {"cost_budget": 2}


def test_a_batch_goes_while_its_notice_is_on_its_way(store: Store, monkeypatch: pytest.MonkeyPatch):
    receiver = Receiver()
    over(store)
    monkeypatch.setattr(store.batches, "read", lambda _: None)
    notifier(store, receiver).send_due()
    assert receiver.requests == []


def test_where_nothing_could_be_signed_or_called_it_is_said_at_once():
    assert check_notify(URL, Settings(webhook_secret=SECRET)) == URL
    with pytest.raises(UsageError, match="no secret to sign it with") as refused:
        check_notify(URL, Settings())
    assert "AGENTQ_WEBHOOK_SECRET" in refused.value.hint
    with pytest.raises(UsageError, match="notify: 'x' is no URL"):
        check_notify("x", Settings(webhook_secret=SECRET))
    with pytest.raises(UsageError, match="webhook_hosts does not have"):
        check_notify(URL, Settings(webhook_secret=SECRET, webhook_hosts="a.org"))
