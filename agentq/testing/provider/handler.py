"""One connection of the server: requests in, answers out, and what faults do to the bytes."""

from __future__ import annotations

import json
import re
import socket
import struct
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any

from agentq.testing.provider.bill import Entry
from agentq.testing.provider.clock import epoch_s
from agentq.testing.provider.exchange import MODULES, Answer, failed, new_request_id, shown
from agentq.testing.provider.fault import Fault
from agentq.testing.provider.refusal import Refusal
from agentq.testing.provider.request import Dialect, Request

if TYPE_CHECKING:
    from agentq.testing.provider.server import FakeProvider

BODY_MAX = 32_000_000
_PATHS: dict[str, Dialect] = {"chat/completions": "chat", "responses": "responses", "messages": "messages"}
_MODELS = re.compile(r"models(?:/(.+))?")
_SECRET_HEADERS = ("authorization", "x-api-key", "cookie", "proxy-authorization")
_HEADERS_MAX = 100
_LINGER_NOT = struct.pack("ii", 1, 0)
GARBAGE = b"\x00\xff{not json" * 8


class Handler(BaseHTTPRequestHandler):
    """Keeps a connection open for one request after the other."""

    protocol_version = "HTTP/1.1"
    server_version = "fake-provider"
    sys_version = ""
    disable_nagle_algorithm = True
    timeout = 600

    @property
    def provider(self) -> FakeProvider:
        """The server's owner."""
        provider: FakeProvider = self.server.provider  # type: ignore[attr-defined]
        return provider

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the bill has it."""

    def handle(self) -> None:
        """Serve until either side hangs up."""
        try:
            super().handle()
        except (ConnectionError, TimeoutError):
            return

    def do_GET(self) -> None:
        """The list of models, or one of them."""
        found = _MODELS.fullmatch(self._path())
        # Which of the two is asked, its headers say.
        dialect: Dialect = "messages" if self.headers.get("anthropic-version") else "chat"
        request_id = new_request_id()
        try:
            if found is None:
                raise self._no_such_path()
            self.provider.service.check_key(dialect, self._headers())
            answer = Answer(200, _models(dialect, self.provider, found[1]))
        except Refusal as refused:
            answer = self.provider.service.refusal(refused, dialect, request_id, [])
        self._send(answer, dialect, request_id)

    def do_POST(self) -> None:
        """A call of a model."""
        dialect = _PATHS.get(self._path())
        request_id = new_request_id()
        number = self.provider.next_number()
        request = Request(dialect=dialect or "chat", body={}, number=number)
        hit: list[Fault] = []
        try:
            raw = self._body()
            if dialect is None:
                raise self._no_such_path()
            request, key = self._request(raw, dialect, number)
            service = self.provider.service
            try:
                request = service.read(request)
                hit = service.faults.hitting(request)
                self.provider.keep(request)
                answer = service.answer(request, key, hit)
            except Refusal:
                if not request.model:
                    self.provider.keep(request)  # what the service does not understand is kept as it came
                raise
        except Refusal as refused:
            answer = self.provider.service.refusal(refused, request.dialect, request_id, hit)
        except Exception as error:  # noqa: BLE001 - a script or a predicate is the user's own code
            answer = self.provider.service.refusal(failed(error), request.dialect, request_id, hit)
        self._answer(answer, request, request_id)

    def _request(self, raw: bytes, dialect: Dialect, number: int) -> tuple[Request, str]:
        headers = self._headers()
        key = self.provider.service.check_key(dialect, headers)
        if dialect == "messages" and not headers.get("anthropic-version"):
            raise Refusal(400, "anthropic-version: header is required")
        try:
            body = json.loads(raw)
        except (ValueError, RecursionError):
            body = None
        if not isinstance(body, dict):
            if dialect == "messages":
                raise Refusal(400, "The request body is not valid JSON: expected an object")
            raise Refusal(
                400,
                "We could not parse the JSON body of your request. (HINT: This likely means you aren't "
                "using your "
                "HTTP library correctly. The OpenAI API expects a JSON payload, but what was sent was "
                "not valid "
                "JSON.)",
            )
        safe = {name: value for name, value in headers.items() if name not in _SECRET_HEADERS}
        return Request(dialect=dialect, body=body, number=number, key=shown(key), headers=safe), key

    def _path(self) -> str:
        path = self.path.partition("?")[0].strip("/")
        while path.startswith("v1/"):
            path = path[3:]
        return path

    def _headers(self) -> dict[str, str]:
        return {name.lower(): value for name, value in list(self.headers.items())[:_HEADERS_MAX]}

    def _no_such_path(self) -> Refusal:
        return Refusal(404, f"Invalid URL ({self.command} {self.path.partition('?')[0]})")

    def _body(self) -> bytes:
        length = self.headers.get("content-length")
        if length is None or not length.isdigit():
            self.close_connection = True
            raise Refusal(411, "the fake provider wants a content-length")
        if int(length) > BODY_MAX:
            self.close_connection = True
            raise Refusal(413, "Request exceeds the maximum size")
        return self.rfile.read(int(length))

    # ---- answers

    def _answer(self, answer: Answer, request: Request, request_id: str) -> None:
        """Write the bill, wait, and send; a fault may do otherwise."""
        self._book(answer, request, request_id)
        late = answer.wire("no_answer")
        wait_s = late.seconds if late else self.provider.draw_latency() if answer.status == 200 else 0.0
        if wait_s > 0 and self.server.over.wait(wait_s):  # type: ignore[attr-defined]
            self.close_connection = True
            return
        if late or answer.wire("closed"):
            self._reset()
            return
        for name, body in (("garbage", GARBAGE), ("empty", b"")):
            if answer.wire(name):
                answer.body, answer.events = body, None
        self._send(answer, request.dialect, request_id)

    def _book(self, answer: Answer, request: Request, request_id: str) -> None:
        usage = answer.usage
        self.provider.bill.add(
            Entry(
                number=request.number,
                seconds=round(self.provider.bill.now_s(), 6),
                dialect=request.dialect,
                model=str(request.body.get("model", ""))[:200],
                key=request.key,
                status=answer.status,
                request_id=request_id,
                input_tokens=usage.input,
                output_tokens=usage.output,
                cached_tokens=usage.cached,
                reasoning_tokens=usage.reasoning,
                faults=tuple(fault.name for fault in answer.faults),
            )
        )

    def _send(self, answer: Answer, dialect: Dialect, request_id: str) -> None:
        headers = {"content-type": "application/json", **answer.headers}
        if not answer.wire("no_request_id"):
            headers["request-id" if dialect == "messages" else "x-request-id"] = request_id
        if answer.events is not None:
            self._stream(answer, dialect, headers)
            return
        body = answer.body
        if isinstance(body, str):
            headers["content-type"] = "text/html" if body.startswith("<") else "text/plain"
            body = body.encode()
        elif not isinstance(body, bytes):
            body = json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")
        headers["content-length"] = str(len(body))
        if answer.wire("half"):
            self.wfile.write(self._head(answer.status, headers) + body[: len(body) // 2])
            self._hang_up()
            return
        self.wfile.write(self._head(answer.status, headers) + body)

    def _stream(self, answer: Answer, dialect: Dialect, headers: Mapping[str, str]) -> None:
        events = list(answer.events or ())
        kept = events
        cut = answer.wire("cut_stream") or answer.wire("half")
        broken = answer.wire("error_in_stream")
        if cut or broken:
            kept = events[: max(1, len(events) // 2)]
        if broken:
            status = 529 if dialect == "messages" else 503
            kept.append(MODULES[dialect].broken(Refusal(status, "Overloaded")))
        typed = {**headers, "content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
        self.wfile.write(self._head(answer.status, {**typed, "transfer-encoding": "chunked"}))
        for name, data in kept:
            text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
            event = (f"event: {name}\n" if name else "") + f"data: {text}\n\n"
            chunk = event.encode("utf-8", "surrogatepass")
            self.wfile.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
        if cut:
            self._hang_up()
            return
        self.wfile.write(b"0\r\n\r\n")

    def _head(self, status: int, headers: Mapping[str, str]) -> bytes:
        reason = self.responses[status][0] if status in self.responses else "Overloaded"
        lines = [f"HTTP/1.1 {status} {reason}", f"date: {self.date_time_string()}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if self.close_connection:
            lines.append("connection: close")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")

    def _hang_up(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def _reset(self) -> None:
        """Close so that the client is told at once: nothing of an answer will come."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
        self.connection.close()


def _models(dialect: Dialect, provider: FakeProvider, wanted: str | None) -> dict[str, Any]:
    names = sorted(provider.service.models or ["fake-1"])
    if wanted is not None:
        provider.service.check_model(dialect, {"model": wanted})
        return _model(dialect, wanted)
    data = [_model(dialect, name) for name in names]
    if dialect == "messages":
        return {"data": data, "has_more": False, "first_id": names[0], "last_id": names[-1]}
    return {"object": "list", "data": data}


def _model(dialect: Dialect, name: str) -> dict[str, Any]:
    if dialect == "messages":
        return {
            "type": "model",
            "id": name,
            "display_name": name,
            "created_at": "2026-01-01T00:00:00Z",
            "lifecycle": "active",
        }
    return {"id": name, "object": "model", "created": epoch_s(), "owned_by": "fake-provider"}
