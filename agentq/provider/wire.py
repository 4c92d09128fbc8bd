"""One request over HTTP, and all that can become of it. No retries: each request has its own reservation."""

from __future__ import annotations

import base64
import json
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

import httpx

from agentq.provider.errors import InvalidRequest, TransientError

BODY_BYTES_MAX = 32 * 1024 * 1024
"""The longest answer that is read."""
CONNECT_SECONDS = 10.0
_KEPT_CONNECTIONS = 64
_KEPT_SECONDS = 1.5
"""How long an idle connection is kept: less than any common server keeps it (gunicorn 2 s, uvicorn 5 s). A
request into a connection that the server is just closing fails like one that it had begun to answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back: `headers` by lower-case names, `data` is the body as JSON, None when it is none."""

    status: int
    headers: Mapping[str, str]
    data: Any
    text: str


class _Progress:
    """How far a request has come; httpx calls it at each stage."""

    def __init__(self) -> None:
        self._begun = False
        self._whole = False

    def __call__(self, stage: str, _info: Mapping[str, Any]) -> None:
        """Note one stage. A proxy is asked for its tunnel first, in the same stages."""
        if stage.endswith("send_request_headers.started"):
            self._begun, self._whole = True, False
        elif stage.endswith("send_request_body.complete"):
            self._whole = True

    @property
    def unsent(self) -> bool:
        """Proof that the request did not leave whole, so that nobody can have answered it."""
        return self._begun and not self._whole


class Wire:
    """The connections of this process to one address.

    Args:
        base_url: where the dialect's paths begin.
        login: user and password for the address itself; they go before a key in the same header.
        seconds: the longest that one request may take, from its beginning to the last byte of its answer.
            Who sends so slowly that it is not over by then is left at the next byte.
        transport: in place of the network, for tests.
    """

    def __init__(
        self,
        base_url: str,
        *,
        login: tuple[str, str] | None = None,
        seconds: float = 600.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self._login = login and "Basic " + base64.b64encode(":".join(login).encode()).decode()
        self._seconds = seconds
        self._transport = transport
        self._guards: dict[int, threading.Lock] = {}
        self._client: httpx.Client | None = None
        self._pid = 0

    def post(
        self, path: str, headers: Mapping[str, str], body: Mapping[str, Any], *, provider: str, model: str
    ) -> Answer:
        """Send one request.

        Raises:
            InvalidRequest: when the address or a header cannot be.
            TransientError: when there was no whole answer; `billed` is False where it was never sent.
        """
        return self._asked("POST", path, headers, body, provider=provider, model=model)

    def get(self, path: str, headers: Mapping[str, str], *, provider: str, model: str) -> Answer:
        """Ask for something that costs nothing.

        Raises:
            InvalidRequest, TransientError: as for `post`.
        """
        return self._asked("GET", path, headers, None, provider=provider, model=model)

    def _asked(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: Mapping[str, Any] | None,
        *,
        provider: str,
        model: str,
    ) -> Answer:
        progress = _Progress()

        def failed(what: str, error: Exception) -> TransientError:
            unsent = progress.unsent or isinstance(error, _NEVER_SENT)
            return TransientError(
                f"{what} {self.base_url}: {str(error) or type(error).__name__}",
                provider=provider,
                model=model,
                cause=error,
                billed=False if unsent else None,
            )

        try:
            return self._exchange(method, path, headers, None if body is None else _encoded(body), progress)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError) as error:
            raise failed("cannot reach", error) from error
        except httpx.TimeoutException as error:
            raise failed(f"no answer within {self._seconds:g} s from", error) from error
        except (httpx.InvalidURL, httpx.UnsupportedProtocol, httpx.LocalProtocolError, _Unsendable) as error:
            raise InvalidRequest(f"{self.base_url}: {error}", provider=provider, model=model) from error
        except httpx.DecodingError as error:
            raise failed("the answer cannot be unpacked from", error) from error
        except httpx.TransportError as error:
            raise failed("the connection broke to", error) from error

    def close(self) -> None:
        """Give the connections back."""
        with self._guard():
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def _exchange(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        content: bytes | None,
        progress: _Progress,
    ) -> Answer:
        deadline = time.monotonic() + self._seconds
        sent = {"content-type": "application/json", "accept-encoding": "identity"}
        sent |= {name.lower(): value for name, value in headers.items()}
        if self._login:
            sent["authorization"] = self._login
        if not all(value.isascii() for value in sent.values()):
            raise _Unsendable("a header has characters that no header has")
        with self._http().stream(
            method,
            f"{self.base_url}{path}",
            headers=sent,
            content=content,
            extensions={"trace": progress},
        ) as response:
            return self._read(response, deadline)

    def _guard(self) -> threading.Lock:
        # One for each process: a fork may come while another thread holds its parent's.
        return self._guards.setdefault(os.getpid(), threading.Lock())

    def _http(self) -> httpx.Client:
        with self._guard():
            # Connections do not survive a fork: a child that used them would answer its parent's requests.
            if self._client is None or self._pid != os.getpid():
                self._client = self._opened()
                self._pid = os.getpid()
            return self._client

    def _opened(self) -> httpx.Client:
        try:
            return httpx.Client(
                timeout=httpx.Timeout(self._seconds, connect=min(CONNECT_SECONDS, self._seconds)),
                limits=httpx.Limits(
                    max_connections=None,
                    max_keepalive_connections=_KEPT_CONNECTIONS,
                    keepalive_expiry=_KEPT_SECONDS,
                ),
                cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),  # nothing of a call is kept
                transport=self._transport,
            )
        except (ValueError, ImportError, OSError, httpx.InvalidURL) as error:
            # The proxy or the certificates that the environment names (HTTPS_PROXY, SSL_CERT_FILE).
            raise _Unsendable(f"this environment's proxy or certificates cannot be used: {error}") from error

    def _read(self, response: httpx.Response, deadline: float) -> Answer:
        size, pieces = 0, []
        for piece in response.iter_bytes():
            size += len(piece)
            pieces.append(piece)
            # A timeout of the socket is only between two bytes; one of ours is for all of them.
            if time.monotonic() > deadline:
                raise httpx.ReadTimeout("it is still sending", request=response.request)
            if size > BODY_BYTES_MAX:
                raise httpx.DecodingError(
                    f"it is longer than {BODY_BYTES_MAX} bytes", request=response.request
                )
        text = b"".join(pieces).decode("utf-8-sig", "replace")
        headers = {name.lower(): value for name, value in response.headers.items()}
        return Answer(response.status_code, headers, _decoded(text), text)


class _Unsendable(Exception):  # noqa: N818 - never leaves this module
    """What cannot become a request."""


_NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)


def _decoded(text: str) -> Any:
    """The JSON value, None when it is none. NaN and the infinities are no JSON: they become null."""
    try:
        return json.loads(text, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return None


def _encoded(body: Mapping[str, Any]) -> bytes:
    try:
        try:
            return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
        except UnicodeEncodeError:
            # Half of a character: as an escape.
            return json.dumps(body, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise _Unsendable(f"the request cannot be written as JSON: {error}") from error
