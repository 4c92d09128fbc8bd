"""Hints: the messages that say that a run may have a step to do, written where they cost least.

Where the broker is the state's own Redis, a hint is put into the queue by the very script that makes the
step due: no round trip, and no moment at which the one is done and the other not. It is the message that
Celery itself would send (`tests/unit/worker/test_hints.py` holds the two side by side), without the work
that Celery does to make it. With another broker, or when somebody listens to Celery's signals of
publishing, it is Celery that sends.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import socket
from collections.abc import Callable

from celery import Celery
from celery.signals import after_task_publish, before_task_publish

from agentq.core.settings import Settings
from agentq.core.urls import broker_url_for
from agentq.store.keys import Keys
from agentq.worker.celery_app import QUEUE, SECOND, TASK
from agentq.worker.transport import HintAMQP

Hint = tuple[str, str]
"""The queue's key, and the message to push onto it."""

_EMBED = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
_encode = json.JSONEncoder(separators=(",", ":")).encode


def task_id(run_id: str, step: int) -> str:
    """The Celery task's id: run and step, and four hex digits because a hint may be sent again."""
    return f"{run_id}.{step}.{secrets.token_hex(2)}"


def shown_arguments(run_id: str, step: int) -> str:
    """The arguments as Flower shows them."""
    return f"{{'run_id': '{run_id}', 'step': {step}}}"


def hint_maker(celery: Celery, settings: Settings) -> Callable[[str, int], Hint | None]:
    """What makes hints for the scripts of this installation; None where Celery has to send."""
    url = settings.redis_url
    beside = url is not None and settings.broker_url in {None, broker_url_for(url)}
    if not beside or not isinstance(celery.amqp, HintAMQP):
        return lambda run_id, step: None  # noqa: ARG005 - the signature is the seam
    key = f"{Keys(settings.namespace).broker_prefix}{QUEUE}"
    origin = f"agentq{os.getpid()}@{socket.gethostname()}"

    def make(run_id: str, step: int) -> Hint | None:
        if before_task_publish.receivers or after_task_publish.receivers:
            return None
        return key, message(run_id, step, origin=origin)

    return make


def hint_template(make_hint: Callable[[str, int], Hint | None]) -> Hint | None:
    """A hint for a run's first step: a script puts the run in place of `@run@`. None where Celery sends.

    Its parts that are unique in other messages are so by the run: a row is admitted once.
    """
    hint = make_hint("@run@", 0)
    return None if hint is None else (hint[0], _template(hint[1]))


def _template(text: str) -> str:
    envelope = json.loads(text)
    properties = envelope["properties"]
    # A script cannot write base 64; kombu takes a body without it as it is.
    envelope["body"] = base64.b64decode(envelope["body"]).decode()
    properties["body_encoding"] = "utf-8"
    properties["delivery_tag"] = "@run@"
    name = "@run@.0.feed"
    envelope["headers"] |= {"id": name, "root_id": name}
    properties["correlation_id"] = name
    return _encode(envelope)


def message(run_id: str, step: int, *, origin: str) -> str:
    """One message in the form of Celery's protocol 2 in kombu's envelope."""
    name = task_id(run_id, step)
    body = _encode([[], {"run_id": run_id, "step": step}, _EMBED])
    return _encode(
        {
            "body": base64.b64encode(body.encode()).decode(),
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": {
                "lang": "py",
                "task": TASK,
                "id": name,
                "root_id": name,
                "parent_id": None,
                "group": None,
                "shadow": None,
                "eta": None,
                "expires": None,
                "retries": 0,
                "timelimit": [None, None],
                "argsrepr": "()",
                "kwargsrepr": shown_arguments(run_id, step),
                "origin": origin,
                "ignore_result": True,
            },
            "properties": {
                "correlation_id": name,
                "reply_to": "",
                "delivery_mode": 2,
                "delivery_info": {"exchange": "", "routing_key": QUEUE},
                "priority": SECOND,
                "body_encoding": "base64",
                "delivery_tag": secrets.token_hex(16),  # unique for each push: kombu keeps messages by it
            },
        }
    )
