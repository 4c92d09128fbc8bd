"""What `agentq` promises whatever the verb: options on both sides, one sentence for an error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from agentq.app import AgentQ
from agentq.cli.group import VERBS
from agentq.cli.session import Session
from agentq.core.errors import ConflictError, InputError, StoreError, UnavailableError, UsageError
from agentq.tools import tool
from agentq.worker.upfile import UpFile, UpState
from tests.unit.cli.fakes import FakeApp, invoke


def test_help_names_every_verb_and_every_verb_explains_itself() -> None:
    listed = invoke("--help").stdout
    for verb in VERBS:
        assert f"\n  {verb} " in listed
        explained = invoke(verb, "--help")
        assert explained.exit_code == 0, explained.stderr
        assert "Options of every verb" in explained.stdout


def test_help_imports_no_verb_and_neither_celery_nor_redis() -> None:
    code = (
        "import sys\n"
        "from agentq.cli.group import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'celery', 'redis', 'rich', 'agentq.app', 'agentq.cli.submit'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_who_only_looks_imports_neither_celery_nor_an_http_client() -> None:
    code = (
        "import sys\n"
        "from agentq import AgentQ\n"
        "app = AgentQ('t')\n"
        "app.agent('a', model='scripted')\n"
        "heavy = {'celery', 'kombu', 'httpx', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_the_version() -> None:
    assert invoke("--version").stdout.startswith("agentq ")


@pytest.mark.parametrize("args", [["--json", "batches"], ["batches", "--json"]])
def test_global_options_stand_on_either_side(app: FakeApp, args: list[str]) -> None:
    shown = invoke(*args)
    assert json.loads(shown.stdout)[0]["batch"] == "b"


@pytest.mark.parametrize(
    "args, sentence",
    [
        (["sumbit"], "there is no verb 'sumbit' (did you mean 'submit'?)"),
        (["submit"], "missing argument 'FILE'"),
        (["submit", "x", "--bathc", "b"], "no such option '--bathc'"),
        (["submit", "x", "--max-usd", "-1"], "must be 0 or more"),
        (["up", "--workers", "0"], "'--workers'"),
    ],
)
def test_a_wrong_call_is_one_sentence_and_exit_2(args: list[str], sentence: str) -> None:
    refused = invoke(*args)
    assert refused.exit_code == 2
    assert refused.stdout == ""
    assert sentence in refused.stderr
    assert refused.stderr.startswith("error: ")
    assert "Usage:" not in refused.stderr


@pytest.mark.parametrize("verb", ["up", "worker", "submit rows.jsonl", "run orders hello"])
def test_verbs_that_need_the_app_say_so(verb: str) -> None:
    refused = invoke(*verb.split())
    assert refused.exit_code == 2
    assert "needs your agents" in refused.stderr
    assert "-A agents:app" in refused.stderr


@pytest.mark.parametrize(
    "error, code",
    [
        (UsageError("no", hint="do this"), 2),
        (InputError(["f:1: no"]), 2),
        (ConflictError("no"), 2),
        (UnavailableError("no"), 7),
        (RedisConnectionError("no"), 7),
        (UnicodeEncodeError("utf-8", "\udcff", 0, 1, "surrogates not allowed"), 2),
        (StoreError("no"), 1),
        (RuntimeError("no"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_errors_become_exit_codes(app: FakeApp, monkeypatch, error: BaseException, code: int) -> None:
    def fail(self: FakeApp) -> None:
        raise error

    monkeypatch.setattr(FakeApp, "batches", fail)
    failed = invoke("batches")
    assert failed.exit_code == code
    assert "Traceback" not in failed.stderr
    assert failed.stdout == ""


def test_the_hint_is_the_second_line(app: FakeApp) -> None:
    failed = invoke("results", "nothing")
    assert (
        failed.stderr == "error: there is no batch 'nothing'\n  agentq batches lists those that there are\n"
    )


def test_a_bug_says_that_it_is_one_and_shows_its_traceback_when_asked(app: FakeApp, monkeypatch) -> None:
    monkeypatch.setattr(FakeApp, "batches", lambda self: 1 / 0)
    assert "this is a bug in agentq: ZeroDivisionError" in invoke("batches").stderr
    assert "Traceback" in invoke("-v", "batches").stderr


@pytest.mark.parametrize(
    "reference, sentence",
    [
        ("agents", "not of the form module:app"),
        ("no_such_module:app", "there is no module 'no_such_module'"),
        ("agentq.demo.agents:ap", "did you mean 'app'"),
        ("agentq.demo.agents:PRICES", "is a dict, not an AgentQ object"),
    ],
)
def test_a_wrong_app_is_explained(reference: str, sentence: str) -> None:
    refused = invoke("-A", reference, "batches")
    assert refused.exit_code == 2
    assert sentence in refused.stderr


def test_a_module_that_fails_names_its_line(tmp_path, monkeypatch) -> None:
    (tmp_path / "failing_agents.py").write_text("x = 1\ny = x / 0\n")
    monkeypatch.chdir(tmp_path)
    refused = invoke("-A", "failing_agents:app", "batches")
    assert refused.exit_code == 2
    assert "ZeroDivisionError: division by zero (line 2)" in refused.stderr


def test_without_any_server_it_says_how_to_get_one(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    failed = invoke("batches")
    assert failed.exit_code == 7
    assert "agentq up starts one" in failed.stderr


def test_a_text_that_is_no_url_is_refused_before_anything_is_connected() -> None:
    refused = invoke("--redis-url", "localhost", "batches")
    assert refused.exit_code == 2
    assert "is not a Redis URL" in refused.stderr


def test_an_app_that_fixes_its_server_is_not_overruled_in_silence(tmp_path, monkeypatch) -> None:
    (tmp_path / "fixed_agents.py").write_text(
        "from agentq import AgentQ\napp = AgentQ('x', redis_url='redis://a/0')\n"
    )
    monkeypatch.chdir(tmp_path)
    refused = invoke("-A", "fixed_agents:app", "--redis-url", "redis://b/0", "batches")
    assert refused.exit_code == 2
    assert "fixes its own redis_url" in refused.stderr


def test_settings_of_the_session_come_from_the_options(monkeypatch) -> None:
    monkeypatch.setenv("AGENTQ_NAMESPACE", "before")
    session = Session()
    session.choose("namespace", "after")
    assert session.settings.namespace == "after"


@pytest.mark.parametrize("args, env", [(["--no-color"], {}), ([], {"NO_COLOR": "1"})])
def test_an_error_has_no_colour_where_none_is_wanted(monkeypatch, args, env) -> None:
    assert "\x1b[" in invoke("sumbit", color=True).stderr
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert "\x1b[" not in invoke(*args, "sumbit", color=True).stderr


@pytest.mark.parametrize(
    "file, content, sentence",
    [
        ("pyproject.toml", "tool = 3", "pyproject.toml: tool is not a table"),
        ("agentq.toml", 'lease_seconds = "x"', "lease_seconds: 'x' is not a number"),
        ("agentq.toml", "park_seconds = true", "park_seconds: True is not a number"),
        ("agentq.toml", "lease_seconds = 0", "lease_seconds: 0 must be more than 0"),
    ],
)
def test_a_wrong_file_of_settings_is_one_sentence(tmp_path, monkeypatch, file, content, sentence) -> None:
    (tmp_path / file).write_text(content)
    monkeypatch.chdir(tmp_path)
    refused = invoke("batches")
    assert refused.exit_code == 2
    assert sentence in refused.stderr


def test_python_sees_the_hint_under_the_error() -> None:
    assert UsageError("no", hint="do this").__notes__ == ["do this"]


def test_an_allowlist_names_tools_that_there_are() -> None:
    with pytest.raises(UsageError, match=r"allowlist names 'lok'.*did you mean 'look'"):
        AgentQ("t").agent("a", model="scripted", tools=[look], allowlist=["lok"])


@tool
def look(order_id: str) -> str:
    """Look."""
    return order_id


def test_a_verb_that_needs_a_server_only_does_not_import_the_app_of_up(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    up = UpState(1, "redis://127.0.0.1:1/0", None, "shop", "no_such_module:app")
    with UpFile(tmp_path / ".agentq").hold() as hold:
        hold.write(up)
        assert invoke("batches").exit_code == 7
        assert "there is no module" in invoke("run", "a", "text").stderr


@pytest.mark.parametrize("package", ["click", "agentq.cli.batches"])
def test_an_interrupt_while_it_is_being_imported_is_one_word_at_most(tmp_path, package: str) -> None:
    """Python raises KeyboardInterrupt within the import of this package."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {package!r}:\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupting())\n"
    )
    for entry in (["-m", "agentq"], ["-c", "import sys; from agentq.cli import main; sys.exit(main())"]):
        done = subprocess.run(
            [sys.executable, *entry, "batches"],
            env=os.environ | {"PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 130
        assert done.stderr.strip() in {"interrupted", ""}


@pytest.mark.parametrize("verb", ["worker", "up"])
def test_a_crash_point_that_there_is_not_is_refused_before_a_worker_starts(
    app: FakeApp, monkeypatch, verb: str
) -> None:
    monkeypatch.setenv("AGENTQ_FAILPOINTS", "nope=kill")
    refused = invoke(verb)
    assert refused.exit_code == 2
    assert refused.stderr.startswith("error: AGENTQ_FAILPOINTS: there is no crash point 'nope'\n")


def test_a_reader_that_leaves_and_a_full_disk_are_told_apart_by_a_real_process() -> None:
    """The help goes to a pipe that nobody reads, and to a device that is full."""
    command = [sys.executable, "-m", "agentq", "--help"]
    read, write = os.pipe()
    os.close(read)
    left = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (left.returncode, left.stderr) == (0, "")
    with Path("/dev/full").open("w") as full:
        refused = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert refused.returncode == 1
    assert refused.stderr == "error: the output cannot be written: No space left on device\n"
