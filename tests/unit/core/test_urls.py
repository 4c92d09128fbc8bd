from __future__ import annotations

from typing import Any

import pytest
import redis
from kombu import Connection
from kombu.transport.redis import Channel

from agentq.core.errors import UsageError
from agentq.core.urls import broker_url_for

SAME_SERVER = [
    ("redis://localhost:6379/0", "redis://localhost:6379/0"),
    ("redis://localhost:6379", "redis://localhost:6379/0"),
    ("redis://", "redis://localhost/0"),
    ("redis://cache:6380/3", "redis://cache:6380/3"),
    ("redis://cache:6380/?db=3", "redis://cache:6380/3"),
    ("redis://cache:6380/1?db=3&socket_timeout=5", "redis://cache:6380/3"),
    ("redis://me:p%40ss@cache:6380/3", "redis://me:p%40ss@cache:6380/3"),
    ("redis://:secret@cache", "redis://:secret@cache/0"),
    ("redis://cache/1?username=me&password=p%40ss", "redis://me:p%40ss@cache/1"),
    ("redis://[::1]:6379/2", "redis://[::1]:6379/2"),
    ("rediss://cache:6380/3", "rediss://cache:6380/3?ssl_cert_reqs=required"),
    ("rediss://cache/3?ssl_cert_reqs=none", "rediss://cache/3?ssl_cert_reqs=none"),
    ("unix:///run/r.sock?db=3", "redis+socket:///run/r.sock?virtual_host=3"),
    ("unix:///run/r.sock", "redis+socket:///run/r.sock?virtual_host=0"),
    ("unix:///my%20runs/r%3f.sock?db=1", "redis+socket:///my%20runs/r%3F.sock?virtual_host=1"),
    ("unix://:p%40ss@/run/r.sock?db=1", "redis+socket://:p%40ss@/run/r.sock?virtual_host=1"),
    ("unix:///run/r.sock?db=1&password=p%40ss", "redis+socket://:p%40ss@/run/r.sock?virtual_host=1"),
]


@pytest.mark.parametrize("ours,celerys", SAME_SERVER)
def test_celerys_url_is_written_out(ours, celerys):
    assert broker_url_for(ours) == celerys


@pytest.mark.parametrize("ours", [ours for ours, _ in SAME_SERVER])
def test_redis_py_and_kombu_read_the_same_server_database_and_credentials(ours):
    """Asked of the two libraries themselves, which is what the table above cannot promise."""
    mine = redis.ConnectionPool.from_url(ours).connection_kwargs
    with Connection(broker_url_for(ours)) as connection:
        # kombu resolves a URL only when a channel is made, which would connect.
        channel: Any = object.__new__(Channel)
        channel.connection = connection.transport
        channel.closed = True
        theirs = channel._connparams()
    for name, default in [("db", 0), ("path", None), ("username", None), ("password", None)]:
        assert theirs.get(name) == mine.get(name, default), name
    if "path" not in mine:
        assert theirs["host"] == mine.get("host", "localhost")
        assert theirs["port"] == mine.get("port", 6379)


def test_a_url_for_sentinels_is_celerys_already():
    url = "sentinel://a:26379/0;sentinel://b:26379/0"
    assert broker_url_for(url) == url


@pytest.mark.parametrize(
    "url,word",
    [
        ("redis+socket:///run/r.sock?virtual_host=2", "unix:///run/r.sock?db=2"),
        ("amqp://host", "redis://host:6379/0"),
        ("localhost", "redis://host:6379/0"),
        ("unix://", "unix:///path"),
    ],
)
def test_what_is_no_redis_url_is_refused_with_the_right_spelling(url, word):
    with pytest.raises(UsageError) as refused:
        broker_url_for(url)
    assert word in refused.value.hint


@pytest.mark.parametrize("url", ["redis://host/nine", "unix:///run/r.sock?db=-1"])
def test_a_database_that_is_no_number_is_refused(url):
    with pytest.raises(UsageError, match="not a number"):
        broker_url_for(url)


def test_a_port_that_is_none_is_refused_without_the_password():
    with pytest.raises(UsageError, match="the port in") as refused:
        broker_url_for("redis://:secret@cache:abc/0")
    assert "secret" not in str(refused.value)
