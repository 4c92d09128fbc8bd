"""`python -m tests.interop`: our adapters against a LiteLLM proxy, a server that others wrote.

It needs no model and no key, but a package index: the proxy is installed into `.interop/`, an environment of
its own (about 500 MB). The last line is the verdict; the exit code is 0 when every case held.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import click
import httpx

from agentq.provider.anthropic import Anthropic
from agentq.provider.errors import (
    AuthError,
    ContextOverflow,
    InvalidRequest,
    LLMError,
    RateLimited,
    TransientError,
)
from agentq.provider.httpmodel import HttpModel
from agentq.provider.openai_chat import OpenAIChat
from agentq.provider.openai_responses import OpenAIResponses
from agentq.provider.types import ChatRequest, ChatResult, Message, Role, ToolCall

HERE = Path(__file__).parent
HOME = HERE.parents[1] / ".interop"
KEY = "sk-interop-0f9d2c41b7e84aa6"
# The proxy's extra names packages that not every index has; these are what it starts with.
PACKAGES = (
    "litellm==1.110.2", "litellm-proxy-extras", "fastapi", "uvicorn", "uvloop", "backoff", "orjson",
    "apscheduler", "email-validator", "python-multipart", "pyyaml", "gunicorn", "cryptography", "pyjwt",
    "websockets", "rich", "redis", "semver", "expression", "fastapi-sso", "mcp", "soundfile", "pynacl",
)  # fmt: skip
START_SECONDS = 120

TOOLS = (
    {
        "name": "get_order",
        "description": "Fetch an order by its id.",
        "parameters": {
            "type": "object",
            "properties": {"order_id": {"type": "string"}},
            "required": ["order_id"],
            "additionalProperties": False,
        },
    },
)
HELLO = ChatRequest(messages=(Message(Role.USER, "hello"),), system="Be brief.", max_output_tokens=64)
AFTER_A_CALL = replace(
    HELLO,
    messages=(
        Message(Role.USER, "where is order 7?"),
        Message(Role.ASSISTANT, "", tool_calls=(ToolCall("call_1", "get_order", '{"order_id": "7"}'),)),
        Message(
            Role.TOOL,
            '{"tool_call_id": "call_1", "tool": "get_order", "ok": true, "error_code": null, '
            '"content": "sent"}',
            tool_call_id="call_1",
        ),
    ),
    tools=TOOLS,
)
DIALECTS: tuple[type[HttpModel], ...] = (OpenAIChat, OpenAIResponses, Anthropic)


@dataclass(frozen=True)
class Case:
    """One call, and what must come of it: an error of this class, or a reply that passes."""

    name: str
    model: str
    request: ChatRequest
    passes: Callable[[ChatResult], bool] | None = None
    raises: tuple[type[LLMError], ...] = ()
    dialects: tuple[type[HttpModel], ...] = DIALECTS


CASES = (
    Case(
        "a plain answer",
        "says",
        HELLO,
        lambda r: r.text == "hello from the proxy" and r.usage.total_tokens > 0,
    ),
    Case(
        "a tool is called",
        "calls",
        replace(HELLO, tools=TOOLS),
        lambda r: (
            [(c.name, c.arguments.replace(" ", "")) for c in r.tool_calls]
            == [("get_order", '{"order_id":"7"}')]
        ),
        dialects=(OpenAIChat,),
    ),
    Case(
        "an answer after a tool's result",
        "says",
        AFTER_A_CALL,
        lambda r: "hello" in r.text and not r.tool_calls,
    ),
    Case(
        "a closing turn without tools",
        "says",
        replace(AFTER_A_CALL, tools=(), tool_choice="none"),
        lambda r: "hello" in r.text,
    ),
    # Its mock errors are answers where it is asked for responses.
    Case("too many requests", "limited", HELLO, raises=(RateLimited,), dialects=(OpenAIChat, Anthropic)),
    Case("a prompt that is too long", "overflows", HELLO, raises=(ContextOverflow,), dialects=(OpenAIChat,)),
    Case(
        "a failure of the server", "breaks", HELLO, raises=(TransientError,), dialects=(OpenAIChat, Anthropic)
    ),
    Case("a model that it does not have", "absent", HELLO, raises=(InvalidRequest, AuthError)),
)


def main() -> int:
    """Install, start, call, tell."""
    _install()
    os.environ |= {"OPENAI_API_KEY": KEY, "ANTHROPIC_API_KEY": KEY}
    held = told = 0
    with _proxy() as url:
        for case in CASES:
            for dialect in case.dialects:
                told += 1
                trouble = _trouble(case, dialect, url)
                held += not trouble
                click.echo(
                    f"{'ok ' if not trouble else 'NOT'}  {dialect.dialect:<12} {case.name} {trouble}".rstrip()
                )
    click.echo(f"interop: {held} of {told} held")
    return 0 if held == told else 1


def _trouble(case: Case, dialect: type[HttpModel], url: str) -> str:
    base_url = url if dialect is Anthropic else f"{url}/v1"
    client = dialect(case.model, base_url=base_url, provider="litellm", call_seconds=30)
    try:
        result = client.complete(case.request)
    except LLMError as error:
        return "" if isinstance(error, case.raises) else f"→ {type(error).__name__}: {error}"
    finally:
        client.close()
    if case.passes is None:
        return f"→ no error, but {result.text!r}"
    return "" if case.passes(result) else f"→ {result}"


def _install() -> None:
    stamp = HOME / "packages"
    if stamp.exists() and stamp.read_text() == " ".join(PACKAGES):
        return
    click.echo("installing a LiteLLM proxy into .interop/ (a minute or two)", err=True)
    venv.create(HOME, with_pip=True, clear=True)
    subprocess.run(
        [HOME / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES],
        check=True,
    )
    stamp.write_text(" ".join(PACKAGES))


@contextmanager
def _proxy() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with (HOME / "proxy.log").open("wb") as log:
        process = subprocess.Popen(
            [
                HOME / "bin/litellm",
                "--config",
                HERE / "litellm.yaml",
                "--host",
                "127.0.0.1",
                "--port",
                str(port),
            ],
            env={**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            _wait(process, url)
            yield url
        finally:
            process.terminate()
            process.wait(20)


def _wait(process: subprocess.Popen[bytes], url: str) -> None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until and process.poll() is None:
        try:
            if httpx.get(f"{url}/health/liveliness", timeout=2).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.5)
    sys.exit(f"the proxy did not start, its output is in {HOME / 'proxy.log'}")


if __name__ == "__main__":
    sys.exit(main())
