"""The methods of kombu and Celery that the lean transport overrides, held against what is installed."""

from __future__ import annotations

import inspect
from threading import Event
from typing import Any

import pytest
import redis
from celery import Celery
from celery.app.amqp import AMQP
from celery.concurrency.thread import TaskPool
from kombu.asynchronous import Hub
from kombu.transport import redis as kombu_redis

from agentq.core.settings import Settings
from agentq.worker.celery_app import SECOND, make_celery
from agentq.worker.embedded import EmbeddedServer
from agentq.worker.transport import SECOND_FIRST, Channel, HintAMQP, HintConnection, Transport, wake_when_done

SEPARATOR = "\x06\x16"
"""What kombu has between a queue's name and a priority."""


@pytest.fixture
def celery(server: EmbeddedServer, namespace: str) -> Celery:
    return make_celery("t", Settings(redis_url=server.url, namespace=namespace))


@pytest.mark.parametrize("method", ["_connparams", "_create_client", "_brpop_start", "basic_ack"])
def test_kombu_still_has_the_methods_that_are_overridden(method):
    """A release that renames one of them must not pass unnoticed."""
    ours, theirs = getattr(Channel, method), getattr(kombu_redis.Channel, method)
    assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters)


def test_celerys_task_consumer_still_takes_its_options(celery):
    """`no_ack` reaches the consumer through the keyword arguments."""
    assert "kw" in inspect.signature(AMQP.TaskConsumer).parameters
    with celery.connection_for_read() as connection, connection.channel() as channel:
        assert celery.amqp.TaskConsumer(channel).no_ack is True


def test_on_redis_the_lean_transport_is_used_with_prefetching_off(celery, namespace):
    """The app's own connection goes through it, below the namespace's prefix."""
    with celery.connection_for_write() as connection:
        channel = connection.default_channel
        assert isinstance(connection.transport, Transport)
        assert isinstance(channel, Channel)
        assert channel.global_keyprefix == f"{{aq:{namespace}}}:mq:"
        assert channel._create_client() is channel._create_client()
    assert celery.conf.worker_disable_prefetch


def test_the_second_list_is_looked_at_first_now_and_then(celery):
    """Otherwise what is in it would wait for as long as anything is in the first."""
    with celery.connection_for_read() as connection:
        channel: Any = connection.default_channel
        client = channel._create_client()
        prefix = channel.global_keyprefix
        for name in ("steps", f"steps{SEPARATOR}{SECOND}"):
            client.lpush(name, *(f"{name}-{n}" for n in range(8)))
        channel._active_queues = ["steps"]
        channel._update_queue_cycle()
        channel.client.connection = channel.client.connection_pool.get_connection()
        taken = []
        for _ in range(8):
            channel._brpop_start()
            key, _ = channel.client.connection.read_response()
            taken.append((key.decode() if isinstance(key, bytes) else key).removeprefix(prefix))
        second = f"steps{SEPARATOR}{SECOND}"
        assert taken == [*["steps"] * (SECOND_FIRST - 1), second] * 2


def test_another_broker_runs_on_stock_celery():
    """Prefetching off and no acknowledgement are for Redis; elsewhere they would mean hoarding."""
    celery = make_celery("t", Settings(broker_url="amqp://guest@localhost//"))
    assert not isinstance(celery.amqp, HintAMQP)
    assert not celery.conf.worker_disable_prefetch
    assert not celery.conf.task_acks_late


def test_a_closed_connection_is_a_lost_connection_not_a_crash(server):
    """kombu 5.7.0 answers with an AttributeError, which takes the worker down."""
    connection = HintConnection(server.broker_url)
    channel: Any = connection.channel()
    connection.collect()
    with pytest.raises(redis.exceptions.ConnectionError):
        channel._connparams()
    connection.close()


def test_the_event_loop_is_woken_when_a_thread_is_free():
    """Otherwise a full pool takes its next message only when the loop looks again, up to a second later."""
    woken = Event()
    hub = Hub()
    hub.call_soon = lambda callback: woken.set()  # type: ignore[method-assign,misc]
    pool: Any = TaskPool(1)
    wake_when_done(pool, hub)
    go_on = Event()
    pool.on_apply(go_on.wait, (5,))
    assert not woken.is_set()
    go_on.set()
    assert woken.wait(5)
    pool.executor.shutdown()
    hub.close()


def test_a_message_is_taken_without_a_trace_in_unacked(celery, redis_client):
    """Nothing is kept for redelivery, so nothing is delivered again when the connection breaks."""
    prefix = celery.conf.broker_transport_options["global_keyprefix"]
    got = []
    with celery.connection_for_read() as connection:
        celery.send_task("agentq.step", kwargs={"run_id": "r", "step": 0})
        with connection.channel() as channel:
            consumer = celery.amqp.TaskConsumer(channel)
            consumer.register_callback(lambda body, message: got.append(message))
            with consumer:
                connection.drain_events(timeout=5)
            before = redis_client.info("commandstats").get("cmdstat_multi", {"calls": 0})["calls"]
            got[0].ack()
            assert redis_client.info("commandstats").get("cmdstat_multi", {"calls": 0})["calls"] == before
    assert len(got) == 1
    assert redis_client.exists(f"{prefix}unacked", f"{prefix}unacked_index") == 0
