"""From an exception to one sentence and an exit code."""

from __future__ import annotations

import os
import sys
import traceback
from functools import partial

import click

from agentq.cli.writable import FULL
from agentq.core.errors import AgentQError
from agentq.core.words import nearest

INTERRUPTED = 130
UNAVAILABLE = 7
USAGE = 2
BUG = 1
UNWRITABLE = 1
OK = 0

_NO_NUMBER = {
    "integer range": "whole number",
    "integer": "whole number",
    "float range": "number",
    "float": "number",
}
"""What click calls a number, the longer names first, and what people do."""
_SERVER_PACKAGES = ("redis", "kombu", "amqp")
_SERVER_WORDS = ("Connection", "Timeout", "OperationalError", "BusyLoading", "InvalidResponse")


def report(error: BaseException, *, verbose: bool, color: bool | None = None) -> int:
    """Say what went wrong on stderr and give the exit code. With `verbose`, the traceback too.

    Args:
        color: False for none; None leaves it to what stands behind the stream.
    """
    say = partial(_say, color=color)
    match error:
        case SystemExit():
            return error.code if isinstance(error.code, int) else BUG
        case KeyboardInterrupt() | click.Abort():
            return INTERRUPTED
        case BrokenPipeError():
            _abandon_stdout()  # whoever read our output has seen enough: `agentq results b | head -1`
            return OK
        case click.exceptions.NoArgsIsHelpError():
            click.echo(error.format_message(), err=True)
            return USAGE
        case click.UsageError():
            name = error.ctx.command_path if error.ctx else "agentq"
            say(_misused(error), f"{name} --help")
            return USAGE
        case click.ClickException():
            say(_sentence(error.format_message()))
            return USAGE
        case AgentQError():
            say(str(error), error.hint)
            _trace(error, verbose)
            return error.exit_code
    if isinstance(error, OSError) and error.errno in FULL and error.filename is None:
        _abandon_stdout()
        say(f"the output cannot be written: {error.strerror}")
        _trace(error, verbose)
        return UNWRITABLE
    if isinstance(error, UnicodeEncodeError) and error.reason == "surrogates not allowed":
        say("a word of this command is no UTF-8 text: there is nothing of that name")
        _trace(error, verbose)
        return USAGE
    if is_unreachable(error):
        first_line = str(error).strip().partition("\n")[0]
        say(f"the server cannot be reached: {first_line or type(error).__name__}", "agentq doctor checks it")
        _trace(error, verbose)
        return UNAVAILABLE
    if any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__):
        say(
            "the server's memory is full: nothing new is taken in",
            "raise its maxmemory, or wait until old runs have expired",
        )
        _trace(error, verbose)
        return UNAVAILABLE
    say(
        f"this is a bug in agentq: {type(error).__name__}: {error}",
        "" if verbose else "-v shows the traceback",
    )
    _trace(error, verbose)
    return BUG


def is_unreachable(error: BaseException) -> bool:
    """Whether the error is a broken connection to Redis or to the broker, by the packages that raise it."""
    return any(
        kind.__module__.partition(".")[0] in _SERVER_PACKAGES and kind.__name__.startswith(_SERVER_WORDS)
        for kind in type(error).__mro__
    )


def _misused(error: click.UsageError) -> str:
    """What click says, and for an option that the verb does not have, the one that was meant, perhaps."""
    if error.ctx is None or not isinstance(error, click.exceptions.NoSuchOption):
        return _sentence(error.format_message())
    params = error.ctx.command.get_params(error.ctx)
    known = [name for param in params for name in param.opts if name.startswith("--")]
    return f"no such option {error.option_name!r}{nearest(error.option_name, known)}"


def _abandon_stdout() -> None:
    """Nothing more is written to stdout, not even what is left in its buffer at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _sentence(text: str) -> str:
    text = " ".join(text.split()).rstrip(".")
    for name, is_none in _NO_NUMBER.items():
        text = text.replace(f"is not a valid {name}", f"is no {is_none}")
    return text[:1].lower() + text[1:]


def _say(sentence: str, hint: str = "", *, color: bool | None) -> None:
    click.echo(f"{click.style('error:', fg='red')} {sentence}", err=True, color=color)
    if hint:
        click.echo(f"  {hint}", err=True)


def _trace(error: BaseException, verbose: bool) -> None:
    if verbose:
        click.echo("".join(traceback.format_exception(error)), err=True, nl=False)
