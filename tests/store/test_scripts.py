"""Scripts reach the server: loaded when it does not know them, repeated when the connection is lost."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from agentq.core.errors import UnavailableError, UsageError
from agentq.store.connect import connect, reachable


@pytest.fixture
def store(server, namespace):
    return connect(server.url, namespace)


def test_a_server_that_forgot_its_scripts_is_told_them_again(store, redis_client):
    store.ledger.set_limit("global", usd=5, tokens=None)
    redis_client.script_flush()
    store.ledger.set_limit("global", usd=7, tokens=None)
    assert store.ledger.account("global").limit_nano == 7
    redis_client.script_flush()
    assert store.watch.renew([], 1000) == []
    assert store.runs._scripts.call_many("batch_seal", [["x"], ["y"]]) == [["MISSING"], ["MISSING"]]


def test_a_connection_that_was_cut_is_made_again(store, redis_client):
    """The idle connections are all dead; every call still gets its own answer."""
    with ThreadPoolExecutor(8) as pool:
        gate = threading.Barrier(8)
        list(
            pool.map(lambda n: (gate.wait(5), store.ledger.set_limit(f"s{n}", usd=n, tokens=None)), range(8))
        )
        redis_client.client_kill_filter(skipme=True, _type="normal")
        list(pool.map(lambda n: store.ledger.set_limit(f"s{n}", usd=n + 10, tokens=None), range(8)))
    assert [store.ledger.account(f"s{n}").limit_nano for n in range(8)] == [n + 10 for n in range(8)]


def test_a_call_that_was_interrupted_leaves_no_reply_for_the_next(store, monkeypatch):
    """Ctrl-C between question and answer: the connection is not used again as it is."""
    store.ledger.set_limit("global", usd=5, tokens=None)
    (connection,) = store.ledger._scripts._connections._idle

    def interrupted():
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(connection, "read_response", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.watch.due(1000, room=1, rescues=1)
    assert store.runs.cancel("nobody", "me") == "MISSING"


def test_a_wrong_answer_of_a_script_is_an_error_and_the_connection_goes_on(store):
    with pytest.raises(redis.exceptions.ResponseError, match="not an amount"):
        store.ledger._scripts.call("budget_set", "o1", "me", "", "global", "-1", "", "=", 0)
    store.ledger.set_limit("global", usd=5, tokens=None)


def test_what_is_no_address_of_a_server_is_refused_in_words(namespace):
    for url in ("localhost:6379", "http://x", "sentinel://a;b"):
        with pytest.raises(UsageError):
            connect(url, namespace)


def test_a_server_that_is_not_there_is_named_without_its_password():
    store = connect("redis://me:secret@127.0.0.1:1/2", "n", retries=0)
    with pytest.raises(UnavailableError) as caught, reachable(store.client):
        store.client.ping()
    assert "redis://127.0.0.1:1/2" in str(caught.value)
    assert "secret" not in str(caught.value)
