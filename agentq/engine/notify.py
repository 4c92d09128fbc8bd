"""Telling somebody that a batch is over: a signed POST to a URL, again and again until it is received.

Whoever's worker comes first sends it. One that dies in the middle leaves it to the next, so it may be
received more than once: with the same `webhook-id`.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import random
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import httpx

from agentq.core.errors import UsageError
from agentq.core.failpoints import failpoint
from agentq.core.lifecycle import StopReason
from agentq.core.money import format_usd
from agentq.core.records import BatchRecord
from agentq.core.settings import Settings
from agentq.core.webhook import check_url, secret_keys, signature
from agentq.store.connect import Store
from agentq.store.notices import Notice

log = logging.getLogger("agentq.notify")

SECONDS = 10.0
"""How long a receiver may take, from the connection to the first line of its answer."""
LEASE_MS = 20_000
AT_ONCE = 20
"""So many are sent in one round, side by side."""
RETRY_SECONDS = (5, 30, 120, 600, 1_800, 3_600, 7_200, 14_400)
"""How long it waits after each failure; after those the last again, until a day is over."""
GONE = 410
"""The receiver's word for: never again."""
ERROR_CHARS_MAX = 200

_Message = tuple[Notice, tuple[bytes, dict[str, str]]]
"""A notice, with its body and its headers."""


def check_notify(url: str, settings: Settings) -> str:
    """The URL itself, when notices can go there.

    Raises:
        UsageError: when it is none, is not allowed, or nothing could be signed.
    """
    try:
        check_url(url, settings.webhook_hosts)
    except ValueError as error:
        raise UsageError(f"notify: {error}", hint="docs/webhooks.md has what may be called") from None
    if not settings.webhook_secret:
        raise UsageError(
            "notify: a notice is signed, and there is no secret to sign it with",
            hint="set AGENTQ_WEBHOOK_SECRET here and for the workers; docs/webhooks.md says how to make one",
        )
    return url


def message_id(namespace: str, created_ms: int, notice: Notice) -> str:
    """The `webhook-id`: the same for each try of a notice, and of no other one."""
    text = f"{namespace}\n{notice.batch}\n{created_ms}\n{notice.number}"
    return f"msg_{hashlib.sha256(text.encode()).hexdigest()[:32]}"


class Notifier:
    """Sends what is due, from one worker.

    Args:
        store: where the notices are.
        settings: with the secret, and the hosts that are allowed.
        transport: in place of the network, for tests.
    """

    def __init__(
        self, store: Store, settings: Settings, *, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._store = store
        self._hosts = settings.webhook_hosts
        self._keys = secret_keys(settings.webhook_secret or "")
        self._transport = transport

    def send_due(self) -> None:
        """Send the notices that are due, at most `AT_ONCE`. It takes no longer than one receiver may."""
        notices = self._store.notices.claim(LEASE_MS, AT_ONCE, can_sign=bool(self._keys))
        if not notices:
            return
        failpoint("notice.after_claim")
        messages: list[_Message] = []
        for notice in notices:
            message = self._message(notice)
            if message is not None:
                messages.append((notice, message))
        if not messages:
            return
        asyncio.run(self._send(messages))

    def _message(self, notice: Notice) -> tuple[bytes, dict[str, str]] | None:
        """Body and headers, or None when the batch is gone."""
        found = summary(self._store, notice)
        if found is None:
            return None
        body = json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode()
        name = message_id(self._store.keys.namespace, found["created_ms"], notice)
        timestamp = self._store.watch.server_ms() // 1000
        return body, {
            "content-type": "application/json",
            "user-agent": f"agentq/{version('agentq')}",
            "webhook-id": name,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": signature(self._keys, name, timestamp, body),
        }

    async def _send(self, messages: list[_Message]) -> None:
        """Send them, and note down what came of each.

        Inside the loop, whose end waits for whatever a name server has not answered: by then others would
        send the same again.
        """
        answers = await self._post(messages)
        failpoint("notice.after_send")
        for (notice, _), (status, wrong) in zip(messages, answers, strict=True):
            self._settle(notice, status, wrong)

    async def _post(self, messages: list[_Message]) -> list[tuple[int | None, str]]:
        """For each the status of the answer, and what is wrong if it was not received."""
        async with httpx.AsyncClient(
            timeout=SECONDS, follow_redirects=False, transport=self._transport
        ) as client:
            return await asyncio.gather(
                *(self._post_one(client, notice.url, *message) for notice, message in messages)
            )

    async def _post_one(
        self, client: httpx.AsyncClient, url: str, body: bytes, headers: dict[str, str]
    ) -> tuple[int | None, str]:
        try:
            check_url(url, self._hosts)
            # httpx counts each read by itself; whoever answers byte by byte must not hold this up.
            async with (
                asyncio.timeout(SECONDS),
                client.stream("POST", url, content=body, headers=headers) as r,
            ):
                status = r.status_code  # the body is not read: only the first line says anything
        except TimeoutError:
            return None, f"no answer within {SECONDS:g} s"
        except httpx.TimeoutException:
            return None, f"no answer within {SECONDS:g} s"
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
            return None, f"{type(error).__name__}: {error}"[:ERROR_CHARS_MAX]
        if 200 <= status < 300:
            return status, ""
        return status, f"HTTP {status}" + (", and redirects are not followed" if 300 <= status < 400 else "")

    def _settle(self, notice: Notice, status: int | None, wrong: str) -> None:
        if not wrong:
            self._store.notices.sent(notice)
            log.info("notice_sent batch=%s number=%s tries=%s", notice.batch, notice.number, notice.tries + 1)
            return
        seconds = RETRY_SECONDS[min(notice.tries, len(RETRY_SECONDS) - 1)]
        retry_ms = round(1000 * seconds * random.uniform(0.9, 1.1))  # noqa: S311 - jitter, not security
        self._store.notices.failed(notice, wrong, None if status == GONE else retry_ms)
        log.warning("notice_failed batch=%s tries=%s why=%s", notice.batch, notice.tries + 1, wrong)


def summary(store: Store, notice: Notice) -> dict[str, Any] | None:
    """What a notice says: how the batch stands now. None when it is gone."""
    batch = store.batches.read(notice.batch)
    if batch is None:
        return None
    reasons = {StopReason(reason): count for reason, count in batch.stop_reasons.items()}
    spent = store.ledger.account(f"batch:{notice.batch}").spent_nano
    return {
        "type": "batch.ended",
        "at": datetime.fromtimestamp(notice.at_ms / 1000, UTC).isoformat(timespec="milliseconds"),
        "batch": batch.name,
        "tenant": batch.tenant,
        "agent": batch.agent,
        "number": notice.number,
        "created_ms": batch.created_ms,
        "total": batch.total,
        "ended": batch.ended,
        "stop_reasons": dict(batch.stop_reasons),
        "failed": sum(count for reason, count in reasons.items() if reason.is_failure),
        "usd": format_usd(spent),
        "exit_code": _exit_code(batch, reasons),
    }


def _exit_code(batch: BatchRecord, reasons: dict[StopReason, int]) -> int:
    """That of `agentq wait`: 8 a key or quota was refused, 3 a run failed, 4 a budget stopped one."""
    if batch.counters.get("refused"):
        return 8
    if any(reason.is_failure for reason in reasons):
        return 3
    return 4 if any(reason.is_budget for reason in reasons) else 0
