"""What a queue alone does: a Celery task that takes its time, and a loop that sends many of it.

    python plain_app.py COUNT

sends COUNT messages, each with two arguments, and prints how many seconds the loop took. Celery's default
settings but for results, which nobody reads. BENCH_BROKER_URL names the broker, BENCH_URL the server that the
task tells when it is done.
"""

from __future__ import annotations

import os
import sys
import time

import redis
from celery import Celery

celery = Celery("plain", broker=os.environ["BENCH_BROKER_URL"])
celery.conf.update(task_ignore_result=True, broker_pool_limit=32)
state = redis.Redis.from_url(os.environ["BENCH_URL"])


@celery.task(name="plain.nap")
def nap(name: str, seconds: float) -> None:
    time.sleep(seconds)
    state.set(f"napped:{name}", 1)


if __name__ == "__main__":
    nap.apply_async(("first", 0.0))  # connects
    began = time.perf_counter()
    for number in range(int(sys.argv[1])):
        nap.apply_async((f"n{number}", 0.0))
    print(time.perf_counter() - began)
