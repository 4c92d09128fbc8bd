"""`agentq fake-provider`, as a process: its first line, its end, and what it refuses."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

AGENTQ = [sys.executable, "-m", "agentq", "fake-provider"]


@contextmanager
def running(*words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process, and the first line that it printed."""
    process = subprocess.Popen([*AGENTQ, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


def refused(*words: str) -> str:
    done = subprocess.run([*AGENTQ, *words], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return done.stderr


def say(url: str, **headers: str) -> httpx.Response:
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    return httpx.post(f"{url}/chat/completions", json=body, headers={"authorization": "Bearer k", **headers})


@pytest.mark.parametrize("end, code", [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_the_first_line_is_the_url_and_a_signal_ends_it(end, code):
    with running() as (process, url):
        assert say(url).json()["choices"][0]["message"]["content"] == 'You said: "hello".'
        process.send_signal(end)
        _, messages = process.communicate(timeout=30)
        assert process.returncode == code
    assert "1 request, 1 answered" in messages
    assert "Traceback" not in messages


def test_everything_can_be_said_on_the_command_line(tmp_path):
    (tmp_path / "turns.json").write_text('["It is on its way."]')
    words = [
        "--script",
        f"{tmp_path}/turns.json",
        "--key",
        "k",
        "--key",
        "l",
        "--model",
        "m",
        "--rpm",
        "1",
        "--headers",
    ]
    with running("--json", *words, "--bill", f"{tmp_path}/bill.jsonl", "--fault", "no-usage") as (_, line):
        url = json.loads(line)["url"]
        assert say(url, authorization="Bearer wrong").status_code == 401
        reply = say(url)
        assert reply.json()["choices"][0]["message"]["content"] == "It is on its way."
        assert "usage" not in reply.json()
        assert reply.headers["x-ratelimit-limit-requests"] == "1"
        assert say(url).status_code == 429
        bill = [json.loads(line) for line in (tmp_path / "bill.jsonl").read_text().splitlines()]
    assert [entry["status"] for entry in bill] == [401, 200, 429]


def test_a_port_in_use_is_one_sentence():
    with running() as (_, url):
        said = refused("--port", url.removesuffix("/v1").rpartition(":")[2])
    assert "is in use" in said


@pytest.mark.parametrize(
    "words, said",
    [
        (["--fault", "overloadd"], "did you mean 'overloaded'"),
        (["--script", "not/there.json"], "No such file"),
        (["--headers"], "there are none"),
        (["--rpm", "0"], "--rpm"),
        (["--bill", "not/there/bill.jsonl"], "No such file"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_printed(words, said):
    assert said in refused(*words)


def test_the_faults_are_listed():
    done = subprocess.run([*AGENTQ, "--faults", "--json"], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["pause_turn"]["dialects"] == ["messages"]
