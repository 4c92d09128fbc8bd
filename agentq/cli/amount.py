"""Money as an option's value."""

from __future__ import annotations

from decimal import Decimal

import click

from agentq.core.money import to_nano


class Amount(click.ParamType[Decimal]):
    """Dollars, exact, 0 or more."""

    name = "USD"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Decimal:
        """Refuse what is not an amount, in the ledger's own words."""
        try:
            to_nano(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return Decimal(str(value))


USD = Amount()
