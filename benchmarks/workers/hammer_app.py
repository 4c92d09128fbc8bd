"""What the hammer hits: an agent, a provider that keeps its own bill, and workers that may be killed.

A worker is the engine itself: claim, reserve, call, commit, with the heartbeat and the tick of a real worker
process. Only Celery is left out, which has no part in the money: hints go through a list of this program's
own, so that a new worker is there in milliseconds. BENCH_URL names the server, BENCH_BILL the bill.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import random
import time

from agentq import AgentQ, Budgets, tool
from agentq.engine.step import execute_step
from agentq.provider.errors import RateLimited, TransientError
from agentq.provider.pricing import ModelPricing
from agentq.provider.types import ChatRequest, ChatResult, Role, ToolCall, Usage
from agentq.worker.background import Background

MODEL = "hammer-1"
PRICE = ModelPricing(MODEL, "1", "10", 128_000)
FRAME = 8
"""Tokens around a message, as this provider counts: all else is a token a byte."""
LEAST_OUTPUT = 48
"""Tokens of a reply: what it says is always less."""
TURNED_AWAY, TIMED_OUT, UNCOUNTED = 0.06, 0.04, 0.06
"""Of all calls: 429 and not billed; no answer, billed or not; an answer without usage."""
SLOWEST = 0.012

random_ = random.Random()
_requests = itertools.count(1)


def tokens_of(request: ChatRequest) -> int:
    """What this provider counts as input."""
    texts = [request.system or "", *(json.dumps(each) for each in request.tools)]
    for message in request.messages:
        texts += [message.content, *(call.name + call.arguments for call in message.tool_calls)]
    return FRAME * len(request.messages) + sum(len(text.encode()) for text in texts)


def bill(request: ChatRequest, usage: Usage) -> None:
    """Append one line to the bill: batch and row, the request, nano-USD, tokens."""
    row, number = request.metadata["row"], f"{os.getpid()}-{next(_requests)}"
    line = f"{row} {number} {PRICE.cost_nano(usage)} {usage.total_tokens}\n"
    opened = os.open(os.environ["BENCH_BILL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(opened, line.encode())
    os.close(opened)


class Provider:
    """Bills before it answers, and does not always answer well.

    Its bound is exact: half of its replies cost to the nano-dollar what was reserved for them.
    """

    provider = "hammer"
    model = MODEL

    def bound(self, request: ChatRequest) -> Usage:
        return Usage(tokens_of(request), request.max_output_tokens)

    def complete(self, request: ChatRequest) -> ChatResult:
        luck, cap = random_.random(), request.max_output_tokens
        time.sleep(random_.uniform(0, SLOWEST))
        if luck < TURNED_AWAY:
            raise RateLimited("slow down", status_code=429)
        usage = Usage(tokens_of(request), random_.choice((cap, random_.randint(LEAST_OUTPUT, cap))))
        luck -= TURNED_AWAY
        if luck >= TIMED_OUT / 2:
            bill(request, usage)
        time.sleep(random_.uniform(0, SLOWEST))
        if luck < TIMED_OUT:
            raise TransientError("no answer in time")
        counted = None if luck - TIMED_OUT < UNCOUNTED else usage
        turn = sum(message.role is Role.ASSISTANT for message in request.messages)
        if request.tool_choice == "none" or turn >= request.metadata["steps"] - 1:
            return ChatResult("done", counted, self.provider, MODEL)
        calls = (ToolCall("", "look_up", json.dumps({"page": turn})),)
        return ChatResult("", counted, self.provider, MODEL, finish_reason="tool_calls", tool_calls=calls)


@tool
def look_up(page: int) -> str:
    """Read one page."""
    return f"page {page} " * 20


app = AgentQ(
    "hammer",
    redis_url=os.environ["BENCH_URL"],
    pricing={MODEL: PRICE},
    lease_seconds=2,
    tick_seconds=0.25,
)
app.agent(
    "hammered",
    model=Provider(),
    tools=[look_up],
    key="shared",
    max_output_tokens=256,
    min_output_tokens=64,
    max_calls_per_step=1,
    max_tool_bytes_per_step=800,
    budgets=Budgets(max_steps=20, max_tokens=100_000, max_usd="1", max_seconds=None),
)

HINTS = f"{app.store.keys.prefix}hints"
LISTS = [HINTS, f"{HINTS}\x06\x161"]
"""Those of a tenant that is below its share, then all others: as kombu keeps the priorities of a queue."""
SLOTS = 20
"""As if each worker worked on so many steps at once: so many runs are admitted that all the money is held."""
app.make_hint = lambda run_id, step: (HINTS, f"{run_id} {step}")
app.dispatch = lambda run_id, step: app.store.client.lpush(LISTS[1], f"{run_id} {step}")


def work(seed: str, log: str, parent: int) -> None:
    """A worker process: take hints and do steps, until it is killed or its parent is gone."""
    random_.seed(seed)
    logging.basicConfig(filename=log, level=logging.INFO, format="%(name)s %(message)s")
    bench = app.bench
    Background(bench, tick_seconds=app.settings.tick_seconds, slots=SLOTS).start()
    while os.getppid() == parent:
        hint = bench.store.client.brpop(LISTS, timeout=0.5)
        if hint is not None:
            run_id, _, step = hint[1].partition(" ")
            execute_step(run_id, int(step), bench=bench)
