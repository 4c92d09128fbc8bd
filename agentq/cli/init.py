"""`agentq init`: a first agent, two rows for it, and what to type."""

from __future__ import annotations

import shlex
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agentq.cli.globals import verb
from agentq.core.errors import UsageError

if TYPE_CHECKING:
    from agentq.cli.session import Session

FILES = ("agents.py", "rows.jsonl")
NEXT = ("agentq up -A agents:app", "agentq submit rows.jsonl --wait", "agentq results rows")


@verb("init")
@click.argument("folder", default=".", metavar="[DIR]")
def command(session: Session, folder: str) -> None:
    """Write a first agents.py and two rows into DIR (here), and say what to type.

    It works without any key: the model is scripted as long as OPENAI_API_KEY is not set. Nothing is ever
    overwritten.
    """
    home = Path(folder)
    there = [name for name in FILES if (home / name).exists() or (home / name).is_symlink()]
    if there:
        raise UsageError(
            f"{home / there[0]} is there already: nothing was written",
            hint="agentq init DIR uses another folder",
        )
    if home.exists() and not home.is_dir():
        raise UsageError(f"{home} is a file, not a folder", hint="agentq init DIR uses another folder")
    source = files("agentq") / "demo/first"
    try:
        home.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            with (home / name).open("x", encoding="utf-8") as file:
                file.write((source / name).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{error.filename or home} cannot be written: {error.strerror}") from None
    steps = [*([f"cd {shlex.quote(folder)}"] if home.resolve() != Path.cwd() else []), *NEXT]
    if session.console.json:
        session.console.document({"folder": folder, "files": list(FILES), "next": steps})
        return
    session.console.out(f"{' and '.join(str(home / name) for name in FILES)} are written. What to type next:")
    session.console.out()
    for step in steps:
        session.console.out(f"  {step}")
    session.console.say()
    session.console.say("agentq up goes on until Ctrl-C: type what follows it in another terminal.")
