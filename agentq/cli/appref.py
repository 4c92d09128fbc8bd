"""`module:app`: from two words on the command line to an AgentQ object, or a sentence why not."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentq.core.errors import AgentQError, UsageError
from agentq.core.words import nearest

if TYPE_CHECKING:
    from agentq.app import AgentQ


def load_app(reference: str) -> AgentQ:
    """Import the module and take the object out of it. The current directory is importable.

    Raises:
        UsageError: when the words, the module or the object are not what they should be.
    """
    from agentq.app import AgentQ

    module_name, colon, attribute = reference.partition(":")
    if not colon or not module_name or not attribute:
        raise UsageError(
            f"--app {reference!r} is not of the form module:app", hint="for example -A agents:app"
        )
    found = getattr(_module(module_name), attribute, None)
    if isinstance(found, AgentQ):
        return found
    apps = [name for name, value in vars(sys.modules[module_name]).items() if isinstance(value, AgentQ)]
    if found is None:
        problem = f"{module_name} has no {attribute!r}{nearest(attribute, apps)}"
    else:
        problem = f"{reference} is a {type(found).__name__}, not an AgentQ object"
    hint = (
        f"write -A {module_name}:{apps[0]}"
        if apps
        else f"{module_name} makes no AgentQ object at its top level"
    )
    raise UsageError(problem, hint=hint)


def _module(name: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return import_module(name)
    except AgentQError:
        raise
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            hint = f"modules are looked for in {here} and in the installed packages"
            close = nearest(name, [file.stem for file in Path(here).glob("*.py")])
            raise UsageError(f"there is no module {name!r}{close}", hint=hint) from None
        raise UsageError(
            f"{name} cannot be imported: {error}", hint="install it where agentq is installed"
        ) from error
    except Exception as error:
        raise UsageError(
            f"{name} cannot be imported: {_where(error, name)}", hint="-v shows the traceback"
        ) from error


def _where(error: Exception, name: str) -> str:
    said = f"{type(error).__name__}: {error}"
    trace = error.__traceback__
    line = 0
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__") == name:
            line = trace.tb_lineno
        trace = trace.tb_next
    return f"{said} (line {line})" if line else said
