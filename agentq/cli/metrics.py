"""`agentq metrics`: what a batch says about its agent, in the order to read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from agentq.agent.metrics import Counts
from agentq.cli.console import plural
from agentq.cli.globals import verb
from agentq.cli.reading import read_metrics

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentq.cli.session import Session

READING = (
    ("loop_rate", "loop rate", "are runs getting stuck? Read it first: a loop inflates all that follows"),
    (
        "budget_stop_rate",
        "budget stop rate",
        "are they cut off? High with few loops: the budget is too tight",
    ),
    ("recovery_rate", "recovery rate", "do they survive a tool error? Low: the tools' messages do not help"),
    ("tool_error_rate", "tool error rate", "how many tool results were errors; not found is an answer"),
    ("completion_rate", "completion", "how many runs finished their task"),
    ("steps_p50", "p50 steps", "a usual run"),
    ("steps_p95", "p95 steps", "a long run"),
    ("mean_usd", "mean USD", "what a run costs"),
)


@verb("metrics")
@click.argument("batch")
def command(session: Session, batch: str) -> None:
    """The metrics of BATCH, in the order in which to read them."""
    record = session.server_app().batch(batch).record()
    counts = Counts.stored(record.counters, record.stop_reasons)
    metrics = counts.metrics().as_dict()
    reading = read_metrics(batch, metrics, counts)
    if session.console.json:
        session.console.document({**metrics, "reading": reading})
        return
    session.console.out(f"{batch}: {plural(metrics['runs'], 'ended run')}")
    if not reading:
        session.console.say(f"  nothing of it has ended yet; agentq watch {batch} looks on")
    for line in reading_lines(metrics, reading):
        session.console.out(line)


def reading_lines(metrics: Mapping[str, Any], reading: Mapping[str, str]) -> list[str]:
    """One line for each metric, with what its value says."""
    titles = {key: title for key, title, _ in READING} | {"unpriced_calls": "unpriced calls"}
    return [f"  {titles[key]:<18}{metric(key, metrics[key]):>10}   {said}" for key, said in reading.items()]


def metric(key: str, value: Any) -> str:
    """A rate as per cent, everything else as it is."""
    if key in {"completion_rate", "loop_rate", "budget_stop_rate", "recovery_rate"}:
        return f"{value:.1%}".replace("%", " %")
    return f"{value:.3f}" if key == "tool_error_rate" else str(value)
