"""The options that every verb takes, before or after the verb's name."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import click

from agentq.cli.names import complete_names
from agentq.cli.session import Session
from agentq.core.errors import UsageError
from agentq.core.words import nearest

_NO_LIMIT = 1_000
"""Longer than any first sentence of a help text, in characters."""


class GlobalOptions(click.Command):
    """A command that adds the global options to its own and lists them apart."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        complete_names(self)
        self._global = _options()

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The command's own parameters, then the global ones, then `--help`."""
        *own, last = super().get_params(ctx)
        return [*own, *self._global, last]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verb's options first: they are what is looked for."""
        for title, wanted in (("Options", False), ("Options of every verb", True)):
            records = [
                record
                for param in self.get_params(ctx)
                if isinstance(param, click.Option)
                and (param in self._global or param.name == "help") is wanted
                and (record := param.get_help_record(ctx)) is not None
            ]
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)
        if isinstance(self, click.Group):
            self.format_commands(ctx, formatter)


class Verb(GlobalOptions):
    """One verb."""


class VerbGroup(GlobalOptions, click.Group):
    """A verb that has verbs of its own: `agentq prices list`."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs, each with the whole of its first sentence."""
        verbs = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Verbs"):
            formatter.write_dl(
                [(name, found.get_short_help_str(_NO_LIMIT)) for name, found in verbs if found]
            )

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb.

        Raises:
            UsageError: for a word that is no verb, with the nearest that is.
        """
        word, known = args[0], self.list_commands(ctx)
        if word not in known and not word.startswith("-") and not ctx.resilient_parsing:
            of = f"{ctx.info_name} " if ctx.parent else ""
            raise UsageError(
                f"there is no verb {f'{of}{word}'!r}{nearest(word, known)}",
                hint=f"agentq {of}--help lists them",
            )
        return super().resolve_command(ctx, args)


def verb(name: str) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a function the verb `name`. It takes the `Session` first and may return an exit code."""

    def wrap(function: Callable[..., Any]) -> click.Command:
        return click.command(name, cls=Verb)(click.pass_obj(function))

    return wrap


def _options() -> list[click.Option]:
    def stored(*names: str, help: str, **options: Any) -> click.Option:
        return click.Option(names, help=help, expose_value=False, callback=_store, **options)

    return [
        stored(
            "-A", "--app", metavar="MODULE:APP", help="The AgentQ object of your agents; else AGENTQ_APP."
        ),
        stored(
            "--redis-url", metavar="URL", help="The state server; else AGENTQ_REDIS_URL, else `agentq up`'s."
        ),
        stored("--namespace", metavar="NAME", help="Whose keys to look at, where no app says it."),
        stored("--json", is_flag=True, help="Data as JSON."),
        stored("-q", "--quiet", is_flag=True, help="No progress and no messages."),
        stored("-v", "--verbose", count=True, help="The traceback of an error."),
        stored("--no-color", is_flag=True, help="No colour."),
        click.Option(
            ["--version"],
            is_flag=True,
            expose_value=False,
            is_eager=True,
            callback=_version,
            help="Show the version.",
        ),
    ]


def _store(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    """Keep what was given; an option that is absent here may stand on the other side of the verb."""
    if not value or param.name is None:
        return
    session = ctx.find_object(Session)
    if session is not None:
        session.choose(param.name, value)


def _version(ctx: click.Context, param: click.Parameter, value: bool) -> None:  # noqa: ARG001
    if not value or ctx.resilient_parsing:
        return
    try:
        number = version("agentq")
    except PackageNotFoundError:
        number = "(not installed)"
    click.echo(f"agentq {number}")
    ctx.exit()
