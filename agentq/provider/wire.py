"""One request over HTTP, and all that can become of it. No retries: each request has its own reservation."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from agentq.provider.errors import InvalidRequest, TransientError

BODY_BYTES_MAX = 32 * 1024 * 1024
"""The longest answer that is read."""
CONNECT_SECONDS = 10.0
_KEPT_CONNECTIONS = 64


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back: `headers` by lower-case names, `data` is the body as JSON, None when it is none."""

    status: int
    headers: Mapping[str, str]
    data: Any
    text: str


class Wire:
    """The connections of this process to one address.

    Args:
        base_url: where the dialect's paths begin.
        seconds: the longest that one request may take, from its beginning to the last byte of its answer.
        transport: in place of the network, for tests.
    """

    def __init__(
        self, base_url: str, *, seconds: float = 600.0, transport: httpx.BaseTransport | None = None
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self._seconds = seconds
        self._transport = transport
        self._guard = threading.Lock()
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
        deadline = time.monotonic() + self._seconds
        where = _shown(self.base_url)

        def failed(what: str, error: Exception, *, billed: bool | None) -> TransientError:
            return TransientError(
                f"{what} {where}: {error or type(error).__name__}",
                provider=provider,
                model=model,
                cause=error,
                billed=billed,
            )

        try:
            with self._http().stream(
                "POST",
                f"{self.base_url}{path}",
                headers={"content-type": "application/json", **headers},
                content=_encoded(body),
            ) as response:
                return self._read(response, deadline)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise failed("cannot reach", error, billed=False) from error
        except httpx.PoolTimeout as error:
            raise failed("no connection is free to", error, billed=False) from error
        except httpx.TimeoutException as error:
            raise failed(f"no answer within {self._seconds:g} s from", error, billed=None) from error
        except httpx.TransportError as error:
            if isinstance(error, httpx.UnsupportedProtocol | httpx.LocalProtocolError):
                raise InvalidRequest(f"{where}: {error}", provider=provider, model=model) from error
            raise failed("the connection broke to", error, billed=None) from error
        except httpx.DecodingError as error:
            raise failed("the answer cannot be unpacked from", error, billed=None) from error
        except (httpx.InvalidURL, UnicodeEncodeError) as error:
            raise InvalidRequest(f"{where}: {error}", provider=provider, model=model) from error

    def close(self) -> None:
        """Give the connections back."""
        with self._guard:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def _http(self) -> httpx.Client:
        with self._guard:
            # Connections do not survive a fork: a child that used them would answer its parent's requests.
            if self._client is None or self._pid != os.getpid():
                self._client = httpx.Client(
                    timeout=httpx.Timeout(self._seconds, connect=CONNECT_SECONDS),
                    limits=httpx.Limits(max_connections=None, max_keepalive_connections=_KEPT_CONNECTIONS),
                    transport=self._transport,
                )
                self._pid = os.getpid()
            return self._client

    def _read(self, response: httpx.Response, deadline: float) -> Answer:
        size, pieces = 0, []
        for piece in response.iter_bytes():
            size += len(piece)
            pieces.append(piece)
            # A timeout of the socket is only between two bytes; one of ours is for all of them.
            if time.monotonic() > deadline:
                raise httpx.ReadTimeout("it is still sending", request=response.request)
            if size > BODY_BYTES_MAX:
                raise httpx.ReadError(
                    f"its answer is longer than {BODY_BYTES_MAX} bytes", request=response.request
                )
        text = b"".join(pieces).decode("utf-8", "replace")
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            data = None
        headers = {name.lower(): value for name, value in response.headers.items()}
        return Answer(response.status_code, headers, data, text)


def _shown(url: str) -> str:
    """The address for people: without a password that may stand in it."""
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"


def _encoded(body: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        return json.dumps(body, separators=(",", ":")).encode()  # half of a character: as an escape
