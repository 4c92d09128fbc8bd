"""One request over real sockets, and all that can become of it."""

from __future__ import annotations

import gzip
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx
import pytest

from agentq.provider import wire as wire_module
from agentq.provider.errors import InvalidRequest, LLMError, TransientError
from agentq.provider.wire import Answer, Wire
from tests.support.rawserver import Line, Player, RawServer, raw_server

GOOD = b'{"ok": true}'


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@contextmanager
def line_to(player: Player, *, seconds: float = 20.0) -> Iterator[tuple[Wire, RawServer]]:
    with raw_server(player) as server:
        wire = Wire(server.url, seconds=seconds)
        try:
            yield wire, server
        finally:
            wire.close()


def post(wire: Wire, body: object = None, headers: dict[str, str] | None = None) -> Answer:
    return wire.post("/x", headers or {}, {"b": body}, provider="p", model="m")


def failure(player: Player, *, seconds: float = 20.0, body: object = None) -> LLMError:
    """The error of one request to a server that does so."""
    with line_to(player, seconds=seconds) as (wire, _), pytest.raises(LLMError) as caught:
        post(wire, body)
    return caught.value


def good(line: Line) -> None:
    while line.request():
        line.answer(GOOD)


# ── what is sent ─────────────────────────────────────────────────────────────────────────────────


def test_a_request_is_sent_as_compact_json_and_asks_for_no_packing() -> None:
    seen: list[bytes] = []

    def player(line: Line) -> None:
        seen.append(line.request())
        line.answer(GOOD, "X-Request-Id: r1")

    with line_to(player) as (wire, _):
        answer = wire.post("/x", {"X-Api-Key": "k"}, {"ä": [1, None]}, provider="p", model="m")
    head, _, body = seen[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /x HTTP/1.1\r\n")
    assert b"content-type: application/json" in head.lower()
    assert b"accept-encoding: identity" in head.lower()
    assert b"x-api-key: k" in head.lower()
    assert body == '{"ä":[1,null]}'.encode()
    assert answer.data == {"ok": True}
    assert answer.headers["x-request-id"] == "r1"


def test_half_of_a_character_is_sent_as_an_escape() -> None:
    seen: list[bytes] = []

    def player(line: Line) -> None:
        seen.append(line.request())
        line.answer(GOOD)

    with line_to(player) as (wire, _):
        post(wire, "\ud83d")
    assert seen[0].endswith(b'{"b":"\\ud83d"}')


@pytest.mark.parametrize("body", [object(), float("nan"), float("inf"), {1, 2}])
def test_what_cannot_be_json_is_an_invalid_request_that_was_never_sent(body: object) -> None:
    error = failure(good, body=body)
    assert type(error) is InvalidRequest
    assert error.billed is False
    assert "cannot be written as JSON" in error.message


@pytest.mark.parametrize("value", ["a\nb", "a\r\nX: y", "é"])
def test_a_header_that_cannot_be_is_an_invalid_request(value: str) -> None:
    with line_to(good) as (wire, _), pytest.raises(InvalidRequest):
        post(wire, headers={"x-api-key": value})


def test_a_login_of_the_address_goes_before_a_key_in_the_same_header() -> None:
    seen: list[bytes] = []

    def player(line: Line) -> None:
        seen.append(line.request())
        line.answer(GOOD)

    with raw_server(player) as server:
        wire = Wire(server.url, login=("me", "sécret"))
        post(wire, headers={"Authorization": "Bearer k", "x-api-key": "k"})
        wire.close()
    assert b"authorization: basic bwu6c8opy3jlda==\r\n" in seen[0].lower()
    assert b"bearer" not in seen[0].lower()
    assert b"x-api-key: k" in seen[0].lower()


def test_a_server_s_cookie_is_not_kept_for_the_next_call() -> None:
    seen: list[bytes] = []

    def player(line: Line) -> None:
        while request := line.request():
            seen.append(request.lower())
            line.answer(GOOD, "Set-Cookie: who=me; Path=/")

    with line_to(player) as (wire, _):
        post(wire)
        post(wire)
    assert len(seen) == 2
    assert b"cookie" not in seen[1]


# ── what is never sent costs nothing ─────────────────────────────────────────────────────────────


def test_a_server_that_refuses_cost_nothing_and_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    wire = Wire(f"http://127.0.0.1:{port}")
    with pytest.raises(TransientError, match=f"cannot reach http://127.0.0.1:{port}") as caught:
        post(wire)
    wire.close()
    assert caught.value.billed is False
    assert (caught.value.provider, caught.value.model) == ("p", "m")


def test_a_name_that_does_not_exist_cost_nothing() -> None:
    wire = Wire("http://no-such-host.invalid")
    with pytest.raises(TransientError, match="cannot reach") as caught:
        post(wire)
    wire.close()
    assert caught.value.billed is False


def test_a_server_without_tls_under_https_cost_nothing() -> None:
    def player(line: Line) -> None:
        line.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with raw_server(player) as server:
        wire = Wire(server.url.replace("http", "https"))
        with pytest.raises(TransientError, match="cannot reach") as caught:
            post(wire)
        wire.close()
    assert caught.value.billed is False


def test_a_request_that_did_not_leave_whole_cost_nothing() -> None:
    def player(line: Line) -> None:
        line.shrink()
        line.over.wait(0.2)
        line.reset()

    error = failure(player, body="x" * 30_000_000)
    assert type(error) is TransientError
    assert error.billed is False


def test_a_server_that_does_not_take_the_request_in_cost_nothing() -> None:
    def player(line: Line) -> None:
        line.shrink()
        line.over.wait()

    error = failure(player, seconds=0.5, body="x" * 30_000_000)
    assert type(error) is TransientError
    assert error.billed is False


@pytest.mark.parametrize("url", ["http://[::1", "http://host:port", "gopher://host", "//host", "http://\x00"])
def test_an_address_that_is_none_is_an_invalid_request(url: str) -> None:
    wire = Wire(url)
    with pytest.raises(InvalidRequest):
        post(wire)
    wire.close()


# ── what was sent and not answered may have cost ─────────────────────────────────────────────────


def resets(line: Line) -> None:
    line.request()
    line.reset()


def closes(line: Line) -> None:
    line.request()


def half_a_head(line: Line) -> None:
    line.request()
    line.send(b"HTTP/1.1 200 OK\r\ncontent-le")


def half_a_body(line: Line) -> None:
    line.request()
    line.send(b'HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{"ok"')


def resets_in_the_body(line: Line) -> None:
    half_a_body(line)
    line.reset()


def half_a_chunk(line: Line) -> None:
    line.request()
    line.send(b'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n64\r\n{"ok"')


def no_http(line: Line) -> None:
    line.request()
    line.send(b"220 smtp.example ready\r\n\r\n")


def two_lengths(line: Line) -> None:
    line.request()
    line.send(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}")


def bad_gzip(line: Line) -> None:
    line.request()
    line.answer(b"this is no gzip", "content-encoding: gzip")


@pytest.mark.parametrize(
    "player",
    [
        resets,
        closes,
        half_a_head,
        half_a_body,
        resets_in_the_body,
        half_a_chunk,
        no_http,
        two_lengths,
        bad_gzip,
    ],
)
def test_an_answer_that_breaks_off_is_tried_again_and_may_have_cost(player: Player) -> None:
    error = failure(player)
    assert type(error) is TransientError
    assert error.billed is None
    assert "127.0.0.1" in error.message
    assert not error.message.endswith(": ")


def test_a_server_that_never_answers_is_left_and_may_have_cost() -> None:
    def player(line: Line) -> None:
        line.request()
        line.over.wait()

    error = failure(player, seconds=0.3)
    assert type(error) is TransientError
    assert error.billed is None
    assert "no answer within 0.3 s" in error.message


def trickles(line: Line) -> None:
    line.request()
    line.send(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
    while not line.over.wait(0.02):
        line.send(b" ")


def test_a_server_that_sends_byte_by_byte_is_left_when_the_time_is_over() -> None:
    begun = time.monotonic()
    error = failure(trickles, seconds=0.4)
    assert time.monotonic() - begun < 5
    assert error.billed is None
    assert "no answer within 0.4 s" in error.message
    assert "still sending" in error.message


def test_blank_lines_that_keep_a_connection_awake_are_no_part_of_the_answer() -> None:
    def player(line: Line) -> None:
        line.request()
        line.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for piece in (b"\n", b"\n", GOOD):
            line.send(b"%x\r\n%s\r\n" % (len(piece), piece))
        line.send(b"0\r\n\r\n")

    with line_to(player) as (wire, _):
        assert post(wire).data == {"ok": True}


@pytest.mark.parametrize("packed", [False, True])
def test_an_answer_that_is_too_long_is_not_read_to_its_end(
    monkeypatch: pytest.MonkeyPatch, packed: bool
) -> None:
    monkeypatch.setattr(wire_module, "BODY_BYTES_MAX", 100_000)
    body = b" " * 1_000_000

    def player(line: Line) -> None:
        line.request()
        if packed:
            line.answer(gzip.compress(body), "content-encoding: gzip")
        else:
            line.answer(body)

    error = failure(player)
    assert type(error) is TransientError
    assert error.billed is None
    assert "longer than 100000 bytes" in error.message


# ── what is read ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "body, data",
    [
        (b"", None),
        (b"<html>", None),
        (b'{"a": ', None),
        (b"\xff\xfe", None),
        (b"[" * 200_000, None),
        (b'{"a": ' + b"9" * 5_000 + b"}", None),
        (b'\xef\xbb\xbf{"a": 1}', {"a": 1}),
        (b'\n\n {"a": "\xff"}', {"a": "\ufffd"}),
        (b'{"a": NaN, "b": -Infinity}', {"a": None, "b": None}),
        (b"[1]", [1]),
        (b"null", None),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_any_body_is_read_and_is_json_or_none(body: bytes, data: object) -> None:
    def player(line: Line) -> None:
        line.request()
        line.answer(body)

    with line_to(player) as (wire, _):
        assert post(wire).data == data


def test_a_length_that_is_too_small_cuts_the_answer_which_then_is_none() -> None:
    def player(line: Line) -> None:
        line.request()
        line.send(b'HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{"ok": true, "more": 1}')

    with line_to(player) as (wire, _):
        assert post(wire).data is None


def test_packed_answers_are_unpacked_although_nobody_asked_for_them() -> None:
    def player(line: Line) -> None:
        line.request()
        line.answer(gzip.compress(GOOD), "content-encoding: gzip")

    with line_to(player) as (wire, _):
        assert post(wire).data == {"ok": True}


def test_an_answer_to_a_request_that_was_not_read_whole_is_read() -> None:
    def player(line: Line) -> None:
        line.shrink()
        line.send(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")
        line.over.wait(0.2)

    with line_to(player) as (wire, _):
        try:
            assert post(wire, "x" * 30_000_000).status == 413
        except TransientError as error:  # the kernel may throw the answer away with the connection
            assert error.billed is False  # noqa: PT017


def test_a_redirect_is_not_followed() -> None:
    def player(line: Line) -> None:
        line.request()
        line.answer(b"", "location: /elsewhere", status="307 Temporary Redirect")

    with line_to(player) as (wire, server):
        answer = post(wire)
    assert (answer.status, answer.headers["location"]) == (307, "/elsewhere")
    assert server.connections == 1


# ── connections ──────────────────────────────────────────────────────────────────────────────────


def test_a_connection_is_used_again() -> None:
    with line_to(good) as (wire, server):
        post(wire)
        post(wire)
        assert server.connections == 1


def test_a_connection_that_the_server_has_closed_meanwhile_is_not_used_again() -> None:
    closed = threading.Event()

    def player(line: Line) -> None:
        line.request()
        line.answer(GOOD)
        line.reset()
        closed.set()

    with line_to(player) as (wire, server):
        for _ in range(3):
            assert post(wire).data == {"ok": True}
            assert closed.wait(10)
            closed.clear()
        assert server.connections == 3


def test_a_connection_is_kept_for_less_time_than_any_server_keeps_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert wire_module._KEPT_SECONDS < 2
    monkeypatch.setattr(wire_module, "_KEPT_SECONDS", 0.0)
    with line_to(good) as (wire, server):
        post(wire)
        post(wire)
        assert server.connections == 2


def test_a_server_that_closes_a_used_connection_without_a_word_may_have_done_the_work() -> None:
    # It took the request in: nobody can tell from outside whether it was done.
    def player(line: Line) -> None:
        line.request()
        line.answer(GOOD)
        line.request()

    with line_to(player) as (wire, _):
        post(wire)
        with pytest.raises(TransientError) as caught:
            post(wire)
    assert caught.value.billed is None


def test_many_threads_share_a_line_and_each_has_its_own_answer() -> None:
    def player(line: Line) -> None:
        while request := line.request():
            line.answer(request.partition(b"\r\n\r\n")[2])

    with line_to(player) as (wire, _):
        answers: dict[int, object] = {}
        threads = [
            threading.Thread(target=lambda n=n: answers.__setitem__(n, post(wire, n).data)) for n in range(24)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    assert answers == {n: {"b": n} for n in range(24)}


def in_child(work: Callable[[], bool]) -> bool:
    """Whether it is so in a fork of this process."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if work() else 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_has_connections_of_its_own_and_its_parent_keeps_its() -> None:
    with line_to(good) as (wire, server):
        post(wire)
        with wire._guard():  # another thread is at it while the process forks
            assert in_child(lambda: post(wire).data == {"ok": True})
        assert server.connections == 2
        post(wire)
        assert server.connections == 2


def test_a_closed_line_opens_again() -> None:
    with line_to(good) as (wire, server):
        post(wire)
        wire.close()
        wire.close()
        post(wire)
        assert server.connections == 2


# ── the environment ──────────────────────────────────────────────────────────────────────────────


def test_the_environment_s_proxy_is_used_and_what_it_excepts_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []

    def proxy(line: Line) -> None:
        seen.append(line.request())
        line.answer(GOOD)

    with raw_server(proxy) as server:
        monkeypatch.setenv("http_proxy", server.url)
        wire = Wire("http://models.invalid/v1")
        assert post(wire).data == {"ok": True}
        wire.close()
        assert seen[0].startswith(b"POST http://models.invalid/v1/x HTTP/1.1")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        with line_to(good) as (direct, _):
            post(direct)
        assert server.connections == 1


@pytest.mark.parametrize("status", ["407 Proxy Authentication Required", "502 Bad Gateway"])
def test_a_proxy_that_gives_no_tunnel_cost_nothing(monkeypatch: pytest.MonkeyPatch, status: str) -> None:
    def proxy(line: Line) -> None:
        line.send(f"HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n".encode())

    with raw_server(proxy) as server:
        monkeypatch.setenv("https_proxy", server.url.replace("http://", "http://me:secret@"))
        wire = Wire("https://models.invalid")
        with pytest.raises(TransientError, match=r"cannot reach https://models\.invalid") as caught:
            post(wire)
        wire.close()
    assert caught.value.billed is False
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "name, value",
    [
        ("http_proxy", "gopher://me:secret@host"),
        ("all_proxy", "socks5://me:secret@host"),
        ("SSL_CERT_FILE", "/no"),
    ],
)
def test_an_environment_that_cannot_be_used_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    wire = Wire("http://127.0.0.1:9")
    with pytest.raises(InvalidRequest, match="environment") as caught:
        post(wire)
    assert caught.value.billed is False
    assert "secret" not in str(caught.value)


def test_a_transport_of_a_test_stands_in_for_the_network() -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json=json.loads(request.content))

    wire = Wire("http://nowhere", transport=httpx.MockTransport(handle))
    assert post(wire, 1).data == {"b": 1}
    wire.close()
