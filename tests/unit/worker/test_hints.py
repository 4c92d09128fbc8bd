"""The message that a script pushes, side by side with the one that Celery sends."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator

import pytest
from celery import Celery
from celery.signals import after_task_publish

from agentq.core.settings import Settings
from agentq.worker.celery_app import QUEUE, TASK, make_celery
from agentq.worker.hints import hint_maker, message
from agentq.worker.tasks import PAUSE_SECONDS, make_dispatch, register_step
from tests.support.harness import SECOND


@pytest.fixture
def settings(server, namespace) -> Settings:
    return Settings(redis_url=server.url, namespace=namespace)


@pytest.fixture
def celery(settings) -> Iterator[Celery]:
    app = make_celery("t", settings)
    register_step(app, lambda: pytest.fail("no step is done here"))
    yield app
    app.close()


def hint(celery, settings, run_id, step):
    """Where the broker is the state's own server, there is one."""
    made = hint_maker(celery, settings)(run_id, step)
    assert made is not None
    return made


def published(celery, settings, redis_client):
    """What Celery puts into the queue, and under which key."""
    make_dispatch(celery)("run_1", 7)
    (key,) = redis_client.scan_iter(match=f"{{aq:{settings.namespace}}}:mq:{QUEUE}*")
    return key, json.loads(redis_client.rpop(key))


def test_a_hint_is_the_message_that_celery_would_send(celery, settings, redis_client):
    """Same key, same envelope, same body; only the ids differ, and what says who sent it."""
    their_key, theirs = published(celery, settings, redis_client)
    our_key, text = hint(celery, settings, "run_1", 7)
    ours = json.loads(text)
    # Celery puts it where it waits for those who are below their share.
    assert our_key + SECOND == their_key
    assert ours.keys() == theirs.keys()
    assert json.loads(base64.b64decode(ours["body"])) == json.loads(base64.b64decode(theirs["body"]))
    own = {"id", "root_id", "origin"}
    left_out = {"group_index", "replaced_task_nesting", "stamped_headers", "stamps"}  # of canvas and stamping
    assert theirs["headers"].keys() - ours["headers"].keys() == left_out
    assert ours["headers"].keys() <= theirs["headers"].keys()
    assert all(ours["headers"][k] == theirs["headers"][k] for k in ours["headers"].keys() - own)
    assert theirs["properties"].keys() - ours["properties"].keys() == {"argsrepr", "kwargsrepr"}  # a copy
    differs = {"correlation_id", "reply_to", "delivery_tag"}
    assert all(ours["properties"][k] == theirs["properties"][k] for k in ours["properties"].keys() - differs)
    assert ours["headers"]["id"].startswith("run_1.7.")


def test_celery_takes_a_hint_for_one_of_its_own(celery, settings, redis_client):
    """The installed Celery decodes it into the task and its arguments."""
    redis_client.lpush(*hint(celery, settings, "run_1", 7))
    got = []
    with celery.connection_for_read() as connection, connection.channel() as channel:
        consumer = celery.amqp.TaskConsumer(channel)
        consumer.register_callback(lambda body, message: got.append((message.headers["task"], body)))
        with consumer:
            connection.drain_events(timeout=5)
    ((task, (args, kwargs, _)),) = got
    assert (task, args, kwargs) == (TASK, [], {"run_id": "run_1", "step": 7})


def test_no_two_hints_share_a_delivery_tag():
    """kombu would drop one of two with the same."""
    tags = {json.loads(message("run_1", 7, origin="o"))["properties"]["delivery_tag"] for _ in range(100)}
    assert len(tags) == 100


def test_a_hint_is_small_whatever_the_run(celery, settings):
    """Ids only, under 2 KB."""
    _, text = hint(celery, settings, "run_" + "x" * 12, 10**6)
    assert len(text) < 2048


def test_with_a_broker_of_its_own_celery_sends(settings):
    """A script can push only where it runs."""
    elsewhere = Settings(redis_url=settings.redis_url, broker_url="redis://127.0.0.1:1/0", namespace="n")
    assert hint_maker(make_celery("t", elsewhere), elsewhere)("run_1", 7) is None
    rabbit = Settings(redis_url=settings.redis_url, broker_url="amqp://localhost//", namespace="n")
    assert hint_maker(make_celery("t", rabbit), rabbit)("run_1", 7) is None


def test_who_listens_to_celerys_signals_hears_every_message(celery, settings):
    """Tracing of other people hooks in there: then Celery sends."""
    make = hint_maker(celery, settings)

    def listener(**_):
        """Hear."""

    assert make("run_1", 7) is not None
    after_task_publish.connect(listener)
    try:
        assert make("run_1", 7) is None
    finally:
        after_task_publish.disconnect(listener)


def test_a_broker_that_failed_is_left_alone_for_a_while(celery, monkeypatch):
    tried: list[str] = []

    def fail(**options):
        tried.append(options["kwargs"]["run_id"])
        raise OSError("dead")

    monkeypatch.setattr(celery.tasks[TASK], "apply_async", fail)
    clock = [100.0]
    dispatch = make_dispatch(celery, now=lambda: clock[0])
    for run in ("run_1", "run_2", "run_3"):
        dispatch(run, 0)
    clock[0] += PAUSE_SECONDS
    dispatch("run_4", 0)
    assert tried == ["run_1", "run_4"]
