"""Real servers, real kills. Whatever a test leaves running is ended and makes the test fail."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest
import redis

from agentq.core.errors import UnavailableError, UsageError
from agentq.worker.binary import find_server
from agentq.worker.datafolder import DataFolder
from agentq.worker.embedded import EmbeddedServer, running, stop_running
from tests.support.processes import is_alive
from tests.support.wait import wait_until


@pytest.fixture
def home() -> Iterator[Path]:
    base = Path(tempfile.mkdtemp(prefix="aqe-", dir="/tmp"))
    try:
        yield base / "home"
        left = [found for path in base.rglob("redis.json") if (found := running(path.parent))]
        for state in left:
            os.kill(state.pid, signal.SIGKILL)
        assert not left, "a server was left running"
    finally:
        shutil.rmtree(base, ignore_errors=True)


def _set(server: EmbeddedServer, name: str, value: str) -> None:
    with redis.Redis.from_url(server.url) as client:
        client.set(name, value)
        # everysec: once the file is said to be flushed, a kill loses nothing.
        wait_until(lambda: _persisted(client), "the write to be on disk")


def _persisted(client: redis.Redis) -> bool:
    info = client.info("persistence")
    return not info["aof_pending_bio_fsync"] and not info["aof_buffer_length"]


def _get(server: EmbeddedServer, name: str) -> str | None:
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        return client.get(name)


def _script(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + dedent(body))
    path.chmod(0o755)
    return path


def test_it_answers_on_a_socket_of_its_own_and_opens_no_port(home):
    server = EmbeddedServer.start(home)
    try:
        with redis.Redis.from_url(server.url, decode_responses=True) as client:
            assert client.ping()
            settings = client.config_get("*")
        assert settings["port"] == "0"
        assert settings["appendonly"] == "yes"
        assert settings["aof-use-rdb-preamble"] == "no"
        assert settings["maxmemory-policy"] == "noeviction"
        assert settings["save"] == ""
        assert server.tcp_url is None
        assert server.broker_url == f"redis+socket://{home}/redis/r.sock?virtual_host=0"
        assert os.getsid(server.pid) != os.getsid(0)
    finally:
        server.stop()


def test_nobody_else_can_look_into_its_folder_or_open_its_socket(home):
    server = EmbeddedServer.start(home)
    try:
        for path in (home, home / "redis", home / "redis/r.sock"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o700, path
        for path in (home / "redis.json", home / "redis/redis.conf"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    finally:
        server.stop()


def test_its_record_says_what_runs(home):
    server = EmbeddedServer.start(home)
    try:
        record = json.loads((home / "redis.json").read_text())
        binary = find_server()
        assert record["pid"] == server.pid
        assert record["socket"] == str(home / "redis/r.sock")
        assert (record["server"], record["version"]) == (binary.name, binary.version)
        assert running(home) == server.state
    finally:
        server.stop()
    assert not (home / "redis.json").exists()
    assert running(home) is None


def test_data_survives_a_stop(home):
    server = EmbeddedServer.start(home)
    _set(server, "greeting", "hello")
    server.stop()
    assert not server.alive
    assert not is_alive(server.pid)
    again = EmbeddedServer.start(home)
    try:
        assert _get(again, "greeting") == "hello"
    finally:
        again.stop()


def test_data_survives_kill_9(home):
    server = EmbeddedServer.start(home)
    _set(server, "greeting", "hello")
    os.kill(server.pid, signal.SIGKILL)
    wait_until(lambda: not server.alive, "the server to die")
    again = EmbeddedServer.start(home)
    try:
        assert again.owned
        assert _get(again, "greeting") == "hello"
    finally:
        again.stop()


def test_a_second_start_adopts_the_running_server_and_leaves_it_running(home):
    first = EmbeddedServer.start(home)
    try:
        second = EmbeddedServer.start(home)
        assert (first.owned, second.owned) == (True, False)
        assert second.pid == first.pid
        assert second.url == first.url
        second.stop()
        assert second.alive
        assert _get(first, "nothing") is None
    finally:
        first.stop()
    assert not second.alive


def test_many_starts_at_once_give_one_server(home, start_process):
    code = """
        import sys, time
        from pathlib import Path
        from agentq.worker.embedded import EmbeddedServer
        server = EmbeddedServer.start(Path(sys.argv[1]))
        print(server.pid, server.owned, flush=True)
        while not Path(sys.argv[1], "go").exists():
            time.sleep(0.02)
        server.stop()
    """
    groups = [start_process([sys.executable, "-c", dedent(code), home]) for _ in range(4)]
    wait_until(lambda: all("\n" in group.output for group in groups), "four servers", timeout=30)
    answers = [group.output.split() for group in groups]
    (home / "go").touch()
    assert [group.wait() for group in groups] == [0, 0, 0, 0]
    assert len({pid for pid, _ in answers}) == 1, answers
    assert sorted(owned for _, owned in answers) == ["False", "False", "False", "True"]


def test_the_server_outlives_a_killed_starter_and_keeps_its_lock(home, start_process):
    code = """
        import sys, time
        from pathlib import Path
        from agentq.worker.embedded import EmbeddedServer
        print(EmbeddedServer.start(Path(sys.argv[1])).pid, flush=True)
        time.sleep(600)
    """
    starter = start_process([sys.executable, "-c", dedent(code), home])
    pid = int(wait_until(lambda: starter.output.partition("\n")[0], "a server", timeout=30))
    starter.end()
    adopted = EmbeddedServer.start(home)
    assert (adopted.owned, adopted.pid) == (False, pid)
    assert stop_running(home)
    assert not is_alive(pid)
    assert not adopted.alive


def test_stopping_where_nothing_runs_says_so(home):
    assert not stop_running(home)
    server = EmbeddedServer.start(home)
    server.stop()
    assert not stop_running(home)


def test_a_process_that_merely_has_the_recorded_id_is_not_signalled(home, start_process):
    server = EmbeddedServer.start(home)
    record = (home / "redis.json").read_text()
    server.stop()
    bystander = start_process([sys.executable, "-c", "import time; time.sleep(600)"])
    stale = {**json.loads(record), "pid": bystander.pid}
    (home / "redis.json").write_text(json.dumps(stale))
    assert not stop_running(home)
    assert bystander.returncode is None
    assert not (home / "redis.json").exists()


def test_a_server_that_does_not_answer_is_named_and_not_killed(home, monkeypatch):
    server = EmbeddedServer.start(home)
    monkeypatch.setattr("agentq.worker.embedded._ANSWER_SECONDS", 0.1)
    os.kill(server.pid, signal.SIGSTOP)
    try:
        with pytest.raises(UnavailableError, match=f"process {server.pid}.* does not answer"):
            stop_running(home)
    finally:
        os.kill(server.pid, signal.SIGCONT)
        server.stop()


def test_a_server_that_ignores_sigterm_is_killed_after_the_timeout(home):
    server = EmbeddedServer.start(home)
    os.kill(server.pid, signal.SIGSTOP)
    server.stop(timeout=0.2)
    assert not is_alive(server.pid)


def test_a_deep_home_gets_a_socket_in_tmp_and_leaves_no_trace_of_it(home):
    deep = home / ("d" * 60) / ("e" * 60)
    server = EmbeddedServer.start(deep)
    socket = Path(server.state.socket)
    try:
        assert len(os.fsencode(socket)) <= 100
        assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o700
        assert json.loads((deep / "redis.json").read_text())["socket"] == str(socket)
        adopted = EmbeddedServer.start(deep)
        assert (adopted.owned, adopted.url) == (False, server.url)
    finally:
        server.stop()
    assert not socket.parent.exists()


def test_the_socket_folder_of_a_killed_server_is_removed_by_the_next(home):
    deep = home / ("d" * 60) / ("e" * 60)
    server = EmbeddedServer.start(deep)
    os.kill(server.pid, signal.SIGKILL)
    wait_until(lambda: not server.alive, "the server to die")
    again = EmbeddedServer.start(deep)
    again.stop()
    assert not Path(server.state.socket).parent.exists()


def test_a_home_with_spaces_and_quotes_works_in_both_dialects(home):
    from kombu import Connection

    odd = home / 'my "own" runs?'
    server = EmbeddedServer.start(odd)
    try:
        _set(server, "greeting", "hello")
        with Connection(server.broker_url) as connection:
            connection.connect()
            assert connection.connected
    finally:
        server.stop()


def test_with_a_port_it_wants_the_password_that_is_in_its_urls(home, free_port):
    server = EmbeddedServer.start(home, port=free_port)
    try:
        assert server.tcp_url is not None
        for url in (server.url, server.tcp_url):
            with redis.Redis.from_url(url) as client:
                assert client.ping()
        with (
            redis.Redis(port=free_port) as stranger,
            pytest.raises(redis.AuthenticationError),
        ):
            stranger.ping()
        assert server.state.password not in repr(server.state)
        arguments = Path(f"/proc/{server.pid}/cmdline")
        assert not arguments.exists() or server.state.password not in arguments.read_text()
    finally:
        server.stop()


@pytest.fixture
def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_a_port_that_is_taken_gives_one_sentence(home):
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UnavailableError, match="stopped at once") as refused:
            EmbeddedServer.start(home, port=taken.getsockname()[1])
    assert "\n" not in str(refused.value)
    assert running(home) is None


@pytest.mark.parametrize("name,version", [("dragon", "9.1.2"), ("valkey", "99.0.0"), ("redis", "99.0.0")])
def test_data_that_another_kind_or_a_newer_server_wrote_is_refused(home, name, version):
    EmbeddedServer.start(home).stop()
    (home / "redis/server.json").write_text(json.dumps({"name": name, "version": version}))
    with pytest.raises(UsageError, match=f"written by {name} {version}") as refused:
        EmbeddedServer.start(home)
    assert "AGENTQ_REDIS_SERVER" in refused.value.hint
    assert not DataFolder(home).locked


def test_data_that_an_older_server_of_the_kind_wrote_is_taken_over(home):
    EmbeddedServer.start(home).stop()
    binary = find_server()
    (home / "redis/server.json").write_text(json.dumps({"name": binary.name, "version": "7.0.0"}))
    EmbeddedServer.start(home).stop()
    assert json.loads((home / "redis/server.json").read_text())["version"] == binary.version


def test_a_home_that_cannot_be_made_is_a_usage_error(home):
    home.parent.joinpath("file").write_text("")
    with pytest.raises(UsageError, match="cannot be used for data"):
        EmbeddedServer.start(home.parent / "file" / "home")


def test_a_server_that_dies_at_the_start_gives_its_last_words(home, monkeypatch):
    broken = _script(
        home.parent / "server",
        """\
        [ "$1" = --version ] && { echo 'Valkey server v=9.1.2 sha=0'; exit 0; }
        echo 'the disk is made of cheese' >&2
        exit 1
        """,
    )
    monkeypatch.setenv("AGENTQ_REDIS_SERVER", str(broken))
    with pytest.raises(UnavailableError, match="stopped at once: the disk is made of cheese") as refused:
        EmbeddedServer.start(home)
    assert "\n" not in str(refused.value)
    assert not DataFolder(home).locked
