"""The Celery app: every setting that agentq relies on, with its reason.

A Celery message is only a hint that a run may have a step to do; the claim decides. So nothing that
Celery offers for reliability is used: no late acknowledgement, no retry, no ETA, no result backend.
"""

from __future__ import annotations

from celery import Celery

from agentq.core.settings import Settings
from agentq.core.urls import broker_url_for
from agentq.store.keys import Keys
from agentq.worker.transport import REDIS_SCHEMES, HintAMQP

TASK = "agentq.step"
"""One stable name: a worker drops a message whose task it does not know."""
QUEUE = "steps"
CONCURRENCY = 16
SECOND = 1
"""The priority of most hints. Those at 0 are taken before: see `lua/_slots.lua`, which sends them there."""


def make_celery(name: str, settings: Settings) -> Celery:
    """A Celery app on the broker of these settings. Nothing is connected yet."""
    url = settings.broker_url or (broker_url_for(settings.redis_url) if settings.redis_url else "memory://")
    on_redis = url.startswith(REDIS_SCHEMES)
    app = Celery(name, amqp=HintAMQP if on_redis else None)
    app.conf.update(
        broker_url=url,
        broker_transport_options={
            "global_keyprefix": Keys(settings.namespace).broker_prefix,  # beside the state, never among it
            "priority_steps": [
                0,
                SECOND,
            ],  # two lists for the queue: tenants below their share are served first
            "socket_timeout": 10,  # a publish must not hang on a frozen server
            "socket_connect_timeout": 5,
            "socket_keepalive": True,
            "health_check_interval": 25,  # finds a half-open connection
            "client_name": f"agentq-{name}",
        },
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,  # for ever; the default gives up after 100
        broker_channel_error_retry=True,  # a server that is out of memory is an outage, not an end
        broker_pool_limit=CONCURRENCY,
        task_default_queue=QUEUE,
        task_default_priority=SECOND if on_redis else None,
        task_create_missing_queues=False,  # a typo makes no queue
        task_serializer="json",
        accept_content=["json"],
        result_backend=None,  # results are in the state
        task_ignore_result=True,
        task_acks_late=False,  # a killed step comes back through its lease, not through the broker
        worker_disable_prefetch=on_redis,  # a message waits in the broker, where any worker may take it
        worker_prefetch_multiplier=1,
        worker_pool="threads",  # steps wait for the network
        worker_concurrency=CONCURRENCY,
        worker_send_task_events=False,  # Flower switches them on while it looks
        task_send_sent_event=False,
        task_publish_retry=False,  # a lost hint is sent again by the tick
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        timezone="UTC",
        enable_utc=True,
    )
    return app
