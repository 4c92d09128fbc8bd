"""The bare chain: a stock Celery task that does nothing but send itself again. BENCH_URL names the server.

Every setting is Celery's default, but for results, which nobody reads, and the broker's pool: with its
default of 10 connections, more than 10 threads would wait for one another.
"""

from __future__ import annotations

import os

import redis
from celery import Celery

celery = Celery("chain", broker=os.environ["BENCH_BROKER_URL"])
celery.conf.update(task_ignore_result=True, broker_pool_limit=int(os.environ["BENCH_POOL_LIMIT"]))
state = redis.Redis.from_url(os.environ["BENCH_URL"])


@celery.task(name="chain.step")
def step(run: int, left: int) -> None:
    if left > 1:
        step.apply_async((run, left - 1))
    else:
        state.incr("done")
