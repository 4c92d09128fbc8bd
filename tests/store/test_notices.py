"""notice_claim.lua, notice_done.lua, and `close_batch`: who wants to know of an end is told once for each."""

from __future__ import annotations

from typing import Any

from agentq.core.lifecycle import StopReason
from agentq.core.records import RowEntry
from agentq.store import Store
from agentq.store.notices import KEPT_MS, Notice
from tests.support.harness import RETENTION_MS, due, dump, untouched

URL = "https://hooks.example.com/x"
FAR = 4_000_000_000_000
"""When its rows may be admitted: never here."""


def load(store: Store, *ids: str, notify: str | None = URL) -> None:
    """A batch with these rows and no others yet."""
    options: dict[str, Any] = {"at": FAR} if notify is None else {"at": FAR, "notify": notify}
    store.batches.open(
        "b", agent="a", tenant="acme", usd=None, tokens=None, retention_ms=RETENTION_MS, options=options
    )
    rows = [RowEntry(f"run_{row_id}_1", row_id, "h", 0, '["t","","","",""]') for row_id in ids]
    if rows:
        store.batches.add("b", rows, {"t": "[]"})
    store.batches.tune("b", options)
    store.batches.seal("b")


def end(store: Store) -> None:
    """All its rows end."""
    store.batches.drop("b", StopReason.COST_BUDGET)


def fields(store: Store) -> dict[str, Any]:
    found = store.client.hgetall(store.keys.batch("b"))
    return {
        name: found[name] for name in ("notice", "notice_tries", "notified", "notify_error") if name in found
    }


def claim(store: Store, **options: Any) -> list[Notice]:
    return store.notices.claim(60_000, 20, **{"can_sign": True, **options})


def again(store: Store) -> None:
    """Let what was put off be due."""
    store.client.zadd(store.keys.notices, {"b": 1}, xx=True)


def test_a_batch_that_is_over_is_told_about_once(store: Store):
    load(store, "x", "y")
    assert claim(store) == []
    end(store)
    (notice,) = claim(store)
    assert (notice.batch, notice.number, notice.url, notice.tries) == ("b", 1, URL, 0)
    assert abs(notice.at_ms - store.watch.server_ms()) < 60_000
    assert claim(store) == [], "somebody has it"
    store.notices.sent(notice)
    assert set(fields(store)) == {"notice", "notice_tries", "notified"}
    assert store.client.exists(store.keys.notices) == 0
    with untouched(store):
        store.notices.sent(notice)


def test_without_a_url_nobody_is_told(store: Store):
    load(store, "x", notify=None)
    end(store)
    assert claim(store) == []
    assert "notices" not in dump(store)


def test_an_empty_batch_is_over_at_once(store: Store):
    load(store)
    assert [notice.batch for notice in claim(store)] == ["b"]


def test_the_same_load_again_is_no_other_end(store: Store):
    load(store, "x")
    end(store)
    (notice,) = claim(store)
    store.notices.sent(notice)
    load(store)
    assert claim(store) == []


def test_a_batch_that_was_over_before_it_had_a_url_is_told_about_when_it_has_one(store: Store):
    load(store, "x", notify=None)
    end(store)
    load(store)
    assert [notice.number for notice in claim(store)] == [1]


def test_a_batch_with_new_rows_or_with_retried_ones_is_told_about_again_when_they_are_over(store: Store):
    load(store, "x")
    end(store)
    store.notices.sent(claim(store)[0])
    load(store, "y")
    assert claim(store) == []
    end(store)
    (second,) = claim(store)
    store.notices.sent(second)
    assert store.batches.revive("b") == 2
    assert claim(store) == []
    end(store)
    (third,) = claim(store)
    assert (second.number, third.number) == (2, 3)
    assert fields(store) == {"notice": "3", "notice_tries": "0"}, "what was said of the second is not of it"


def test_a_notice_of_a_batch_that_goes_on_again_is_dropped(store: Store):
    load(store, "x")
    end(store)
    store.batches.revive("b")
    assert claim(store) == []
    assert store.client.exists(store.keys.notices) == 0


def test_a_notice_of_a_batch_that_is_gone_is_dropped(store: Store):
    load(store, "x")
    end(store)
    store.client.delete(store.keys.batch("b"))
    assert claim(store) == []
    assert store.client.exists(store.keys.notices) == 0


def test_what_fails_is_put_off_and_counted_and_says_why(store: Store):
    load(store, "x")
    end(store)
    (notice,) = claim(store)
    store.notices.failed(notice, "HTTP 500", 30_000)
    assert fields(store) == {"notice": "1", "notice_tries": "1", "notify_error": "HTTP 500"}
    with untouched(store):
        store.notices.failed(notice, "HTTP 500", 30_000)  # its reply was lost
        assert claim(store) == []
    again(store)
    (notice,) = claim(store)
    assert notice.tries == 1
    store.notices.sent(notice)
    assert set(fields(store)) == {"notice", "notice_tries", "notified"}


def test_a_worker_that_was_slow_does_not_take_back_what_another_has_sent(store: Store):
    load(store, "x")
    end(store)
    (slow,) = claim(store)
    again(store)
    (quick,) = claim(store)
    store.notices.sent(quick)
    with untouched(store):
        store.notices.failed(slow, "no answer", 5)


def test_what_is_said_of_one_end_is_not_said_of_the_next(store: Store):
    load(store, "x")
    end(store)
    (first,) = claim(store)
    store.batches.revive("b")
    end(store)
    with untouched(store):
        store.notices.sent(first)
        store.notices.failed(first, "HTTP 500", 5)
    assert [notice.number for notice in claim(store)] == [2]


def test_a_receiver_that_wants_none_is_left_alone_and_somebody_hears_of_it(store: Store):
    load(store, "x")
    end(store)
    store.notices.failed(claim(store)[0], "HTTP 410", None)
    assert store.client.exists(store.keys.notices) == 0
    assert fields(store)["notify_error"] == "given up: HTTP 410"
    assert [event["event"] for event in due(store).events] == ["notice_given_up"]


def test_after_a_day_it_is_given_up_with_the_last_reason(store: Store):
    load(store, "x")
    end(store)
    store.notices.failed(claim(store)[0], "HTTP 500", 1)
    again(store)
    store.client.hincrby(store.keys.batch("b"), "notice_at", -KEPT_MS - 1)
    assert claim(store) == []
    assert fields(store)["notify_error"] == "given up: HTTP 500"
    assert store.client.exists(store.keys.notices) == 0
    assert [event["detail"] for event in due(store).events] == ["given up: HTTP 500"]


def test_a_worker_without_a_secret_takes_none_and_leaves_them_to_others_with_a_word(store: Store):
    load(store, "x")
    end(store)
    assert claim(store, can_sign=False) == []
    assert fields(store)["notify_error"] == "no worker has the setting webhook_secret"
    (notice,) = claim(store)
    store.notices.sent(notice)
    assert "notify_error" not in fields(store)


def test_no_more_are_taken_than_asked_for(store: Store):
    load(store)
    assert store.notices.claim(60_000, 0, can_sign=True) == []
    assert len(claim(store)) == 1
