"""What a load may cost, shown and asked about before it is submitted."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import click

from agentq.cli.console import Console, plural
from agentq.core.errors import UsageError
from agentq.core.money import format_usd, to_nano

if TYPE_CHECKING:
    from agentq.engine.load import Load


def show_estimate(console: Console, batch: str, load: Load) -> None:
    """Rows, tokens and the most that it can cost; nothing was submitted."""
    facts = estimate_fields(load)
    if console.json:
        console.document({"batch": batch, "dry_run": True, **facts})
        return
    console.out(f"batch {batch}: {plural(facts['rows'], 'row')} checked, nothing submitted")
    console.out(f"  first calls   about {facts['input_tokens']:,} tokens of input")
    console.out(f"  at most       {worst_words(load)}")
    for name, count in facts["agents"].items():
        console.out(f"  agent         {name} ({count})")


def estimate_fields(load: Load) -> dict[str, Any]:
    """The same as a JSON object; `worst_usd` is null where no limit bounds it."""
    worst = worst_of(load)
    return {
        "rows": load.estimate.rows,
        "input_tokens": load.estimate.tokens,
        "worst_usd": None if worst is None else format_usd(worst),
        "unbounded_rows": load.estimate.unbounded,
        "agents": {name: agent.client.model for name, agent in load.agents.items()},
    }


def worst_of(load: Load) -> int | None:
    """The most that the load can cost in nano-USD: by its runs' limits, and the batch's; None without any."""
    own = None if load.estimate.unbounded else load.estimate.worst_nano
    cap = load.terms.batch_usd
    return cap if own is None else own if cap is None else min(own, cap)


def worst_words(load: Load) -> str:
    """That in words."""
    worst = worst_of(load)
    if worst is not None:
        capped = worst == load.terms.batch_usd
        return f"{format_usd(worst)} USD" + (" (the limit of the batch)" if capped else "")
    count = load.estimate.unbounded
    return f"not known: {plural(count, 'row')} with neither a limit in USD nor one in tokens of known price"


def confirm_cost(console: Console, load: Load, above: Decimal | None, *, yes: bool) -> None:
    """Return when the load may cost no more than that, or a person says yes.

    Raises:
        UsageError: when not, or nobody is there to ask; nothing was submitted.
    """
    worst = worst_of(load)
    if above is None or yes or (worst is not None and worst <= to_nano(above)):
        return
    what = f"{plural(load.estimate.rows, 'row')} that may cost {worst_words(load)}"
    if not console.can_ask:
        raise UsageError(
            f"there is nobody to ask here whether to submit {what}",
            hint="-y says yes, --max-usd N sets a limit, --dry-run only looks",
        )
    if not click.confirm(f"Submit {what}?", err=True):
        raise UsageError("nothing was submitted")
