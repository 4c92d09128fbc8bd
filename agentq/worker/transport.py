"""kombu's Redis transport, made lean for messages that may be lost.

A message of agentq is only a hint, so what kombu does to keep one safe is left out, and four of its
habits are mended. The methods overridden here are kombu's own and not promised to stay:
`tests/unit/worker/test_transport.py` holds each of them against the kombu that is installed, and any other
broker runs on Celery's stock transport.
"""

from __future__ import annotations

from time import monotonic
from typing import Any

import redis
from celery.app.amqp import AMQP
from kombu import Connection
from kombu.transport import redis as kombu_redis

REDIS_SCHEMES = ("redis:", "rediss:", "redis+socket:")
SECOND_FIRST = 4
"""Of so many looks for a message one begins at the second list: what is in it waits, but not for ever."""


_Base: Any = kombu_redis.Channel  # its stubs know neither of the methods below


class Channel(_Base):  # type: ignore[misc]
    """One client for the channel's life, no crash on a closed connection, no empty acknowledgement."""

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
        # kombu 5.7.0 closes a channel after its connection and then looks up the connection's host: an
        # AttributeError that takes the whole worker down whenever Redis refuses connections.
        if self.connection is None or self.connection.client is None:
            raise redis.exceptions.ConnectionError("this channel of the broker is closed already")
        return super()._connparams(asynchronous)  # type: ignore[no-any-return]

    def _create_client(self, asynchronous: bool = False) -> Any:
        # kombu makes a new client, with a table of 150 callbacks, for every group of commands: a seventh of
        # a worker's time.
        if asynchronous:
            return super()._create_client(asynchronous)
        client = self.__dict__.get("_kept_client")
        if client is None or client.connection_pool is not self.pool:
            client = self.__dict__["_kept_client"] = super()._create_client()
        return client

    def _brpop_start(self, timeout: float | None = None) -> None:
        # kombu's own, but for the order of the lists: that one always empties the first before the second.
        queues = self._queue_cycle.consume(len(self.active_queues))
        if not queues:
            return
        lists = [self._q_for_pri(queue, priority) for priority in self.priority_steps for queue in queues]
        self._looks = getattr(self, "_looks", 0) + 1
        if self._looks % SECOND_FIRST == 0:
            lists.reverse()
        self._in_poll = self.client.connection
        self._brpop_sent_at = monotonic()
        command = ["BRPOP", *lists, (self.brpop_timeout if timeout is None else timeout) or 0]
        if self.global_keyprefix:
            command = self.client._prefix_args(command)
        self.client.connection.send_command(*command)

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        """Acknowledge a message, if it was taken with a promise to do so."""
        # Celery acknowledges every message. Of one that was taken without a promise nothing is kept, so
        # kombu would send a transaction that deletes nothing: a fifth of a worker's time.
        if delivery_tag in self.qos._delivered:
            super().basic_ack(delivery_tag, multiple=multiple)


class Transport(kombu_redis.Transport):
    """The transport of `redis://`, `rediss://` and `redis+socket://`."""

    Channel = Channel


class HintConnection(Connection):
    """A connection on the transport above; for `redis+socket://` no setting of kombu would choose it."""

    def get_transport_cls(self) -> type[Transport]:
        """The lean transport."""
        return Transport


class HintAMQP(AMQP):
    """Takes messages without acknowledging them: one that is lost is sent again by the tick."""

    Connection = HintConnection

    def TaskConsumer(self, channel: Any, *args: Any, **options: Any) -> Any:  # noqa: N802 - Celery's name
        """Celery's consumer of tasks, with nothing to acknowledge."""
        return super().TaskConsumer(channel, *args, no_ack=True, **options)


def wake_when_done(pool: Any, hub: Any) -> None:
    """Have the worker look for the next message as soon as a step is done.

    With prefetching off, a full pool leaves no request for a message pending; nothing tells Celery's event
    loop that a thread has become free, and it sleeps for up to a second.
    """
    apply = pool.on_apply

    def on_apply(*args: Any, **options: Any) -> Any:
        result = apply(*args, **options)
        result.f.add_done_callback(lambda _: wake(hub))
        return result

    pool.on_apply = on_apply


def wake(hub: Any) -> None:
    """Have Celery's event loop look around now. From any thread."""
    hub.call_soon(_nothing)


def _nothing() -> None:
    """Waking up is all."""
