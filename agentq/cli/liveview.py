"""What a person sees of a batch while it runs: a panel that is redrawn in place, or one line now and then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentq.core.money import NANO, format_usd
from agentq.core.text import clock
from agentq.core.timespan import format_span

if TYPE_CHECKING:
    from rich.console import RenderableType

    from agentq.cli.tally import Tally
    from agentq.engine.forecast import Forecast

TOP_REASONS = 5
BAR_WIDTH = 32
SLOW = 10
"""So few rows a minute are shown with one decimal place."""


def dollars(nano: int) -> str:
    """Money at a glance: cents from one dollar on, else four places. Rounded up."""
    return f"${format_usd(nano, 2 if nano >= NANO or nano == 0 else 4)}"


def plain_line(tally: Tally, at: str) -> str:
    """One line: `12:00:05 412/5000 done 9 failed $1.32/$25.00 38/min eta 2m`, and what else there is to say.

    Args:
        tally: the batch.
        at: the time of day.
    """
    limit = "" if tally.limit_nano is None else f"/{dollars(tally.limit_nano)}"
    words = [at, f"{tally.ended}/{tally.total} done"]
    for count, word in (
        (tally.failed, "failed"),
        (tally.waiting, "waiting"),
        (tally.parked, "parked"),
        (tally.held, "paused"),
    ):
        words += [f"{count} {word}"] if count else []
    words += [f"{dollars(tally.spent_nano)}{limit}", *_pace(tally)]
    line = " ".join(words)
    return ", ".join([line, *standing(tally)])


def standing(tally: Tally) -> list[str]:
    """Why rows do not begin that have not, each reason in words."""
    said = []
    if tally.loader is not None:
        who = tally.loader.rpartition(":")[0].replace("@", " on ") or tally.loader
        said.append(f"its load by {who} was broken off" if tally.broken_off else f"being loaded by {who}")
    if tally.paused_by is not None:
        said.append(f"paused by {tally.paused_by}")
    if tally.starts_ms is not None and tally.ended < tally.total:
        said.append(f"starts at {clock(tally.starts_ms)}")
    if tally.pilot is not None:
        said.append(f"a pilot of {tally.pilot} rows first")
    if tally.blocked and tally.dry and tally.rows:
        said.append("the rows that have not begun wait for the same money as those that are parked")
    return said


def forecast_line(forecast: Forecast, limit_nano: int | None) -> str:
    """What the whole batch comes to, in one line."""
    over = ""
    if limit_nano is not None and forecast.high_nano > limit_nano:
        may = "" if forecast.usd_nano > limit_nano else "perhaps "
        over = f", {may}more than its limit of {format_usd(limit_nano)}"
    low, high = format_usd(forecast.low_nano), format_usd(forecast.high_nano)
    ends = "no end in sight"
    if forecast.seconds is not None and forecast.soonest is not None:
        latest = "?" if forecast.latest is None else format_span(forecast.latest)
        ends = f"ends in {format_span(forecast.seconds)} ({format_span(forecast.soonest)} to {latest})"
    return (
        f"{format_usd(forecast.usd_nano)} USD in all ({low} to {high}){over}; {ends} at "
        f"{forecast.per_minute:.1f} a minute, by {forecast.based_on} runs"
    )


def panel(tally: Tally) -> RenderableType:
    """The batch on some lines: bar, pace and money, what is live, stop reasons, what keeps it."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    bar = Table.grid(padding=(0, 1))
    share = f"{tally.ended / tally.total:.0%}" if tally.total else ""
    bar.add_row(
        Text(tally.name, style="bold"),
        ProgressBar(total=max(1, tally.total), completed=tally.ended, width=BAR_WIDTH),
        f"{tally.ended}/{tally.total}",
        share,
    )
    reasons = sorted(tally.stop_reasons.items(), key=lambda item: (-item[1], item[0]))
    more = len(reasons) - TOP_REASONS
    ended = [f"{count} {reason}" for reason, count in reasons[:TOP_REASONS]]
    ended += [f"{more} more reasons"] if more > 0 else []
    lines = [", ".join(_money(tally)), ", ".join(tally.live()), ", ".join(ended), ", ".join(standing(tally))]
    return Group(bar, *(Padding.indent(Text(line), 2) for line in lines if line))


def _money(tally: Tally) -> list[str]:
    limit = "" if tally.limit_nano is None else f" of {dollars(tally.limit_nano)}"
    said = [*_pace(tally), f"{dollars(tally.spent_nano)}{limit} spent"]
    found = tally.forecast
    if found is not None and tally.ended < tally.total:
        over = " !" if tally.limit_nano is not None and found.high_nano > tally.limit_nano else ""
        low, high = dollars(found.low_nano), dollars(found.high_nano)
        said.append(f"{dollars(found.usd_nano)} in all ({low} to {high}){over}")
    return said


def _pace(tally: Tally) -> list[str]:
    found = tally.forecast
    if found is None or tally.ended >= tally.total:
        return []
    eta = "?" if found.seconds is None else format_span(found.seconds)
    places = 0 if found.per_minute >= SLOW else 1
    return [f"{found.per_minute:.{places}f}/min", f"eta {eta}"]
