"""The obvious implementation: each step reads the whole thread, appends a message and writes it back.

Nothing protects it: no lease, no budget, no ledger; a worker that dies loses the run, a message that
arrives twice makes the step twice. Celery is set up as for the bare chain. BENCH_URL names the server.
"""

from __future__ import annotations

import json
import os

import redis
from celery import Celery
from filler import text

celery = Celery("obvious", broker=os.environ["BENCH_BROKER_URL"])
celery.conf.update(task_ignore_result=True, broker_pool_limit=int(os.environ["BENCH_POOL_LIMIT"]))
state = redis.Redis.from_url(os.environ["BENCH_URL"])


@celery.task(name="obvious.step")
def step(run: int, left: int) -> None:
    raw = state.get(f"thread:{run}")
    thread = json.loads(raw) if raw else {"step": 0, "messages": []}
    thread["step"] += 1
    thread["messages"].append({"role": "assistant", "content": text(thread["step"])})
    state.set(f"thread:{run}", json.dumps(thread))
    if left > 1:
        step.apply_async((run, left - 1))
    else:
        state.incr("done")
