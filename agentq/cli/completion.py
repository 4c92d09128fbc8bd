"""`agentq completion`: what a shell needs to complete verbs, options and names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from agentq.cli.globals import verb
from agentq.core.errors import UsageError

if TYPE_CHECKING:
    from agentq.cli.session import Session

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_AGENTQ_COMPLETE"
"""How the script asks `agentq` for what may follow; click's own convention."""


@verb("completion")
@click.argument("shell", metavar="SHELL", type=click.Choice(SHELLS))
def command(session: Session, shell: str) -> None:
    """Write the completion script of SHELL: bash, zsh or fish.

    \b
      eval "$(agentq completion bash)"     in ~/.bashrc
      eval "$(agentq completion zsh)"      in ~/.zshrc, behind compinit
      agentq completion fish | source      in ~/.config/fish/config.fish
    """  # noqa: D301 - click's mark for lines that stay as they are
    from click.shell_completion import get_completion_class

    from agentq.cli.group import main

    kind = get_completion_class(shell)
    if kind is None:  # a name of SHELLS that click does not have
        raise UsageError(f"there is no completion for {shell}")
    script = kind(main, {}, "agentq", VARIABLE)
    # Not source(): that runs bash to ask for its version, and complains where there is none.
    text = script.source_template % script.source_vars()
    if session.console.json:
        session.console.document({"shell": shell, "script": text})
    else:
        session.console.out(text)
