"""How much there may be at once, as an option's value."""

from __future__ import annotations

import click

from agentq.cli.amount import KEEP, Keep


class Cap(click.ParamType["int | Keep | None"]):
    """A whole number from 1, or `none` for no cap. An option that is not given keeps what there is."""

    name = "N|none"

    def __init__(self, most: int) -> None:
        self.most = most

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | Keep | None:
        """The cap, None, or KEEP."""
        text = str(value).strip().lower()
        if text == KEEP:
            return KEEP
        if text == "none":
            return None
        if not text.isascii() or not text.isdigit() or not 1 <= int(text[:12]) <= self.most:
            self.fail(f"{value!r} is no whole number from 1 to {self.most:,}, nor none", param, ctx)
        return int(text)


IN_FLIGHT = Cap(1_000_000)
OPEN = Cap(100_000_000)
