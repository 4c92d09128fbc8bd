"""docker-compose.yml and deploy/ agree with the package, with each other and with what is written about them.

Without an engine: `make test-compose` starts them.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from agentq.core.settings import NAMES, PREFIX, Settings
from agentq.demo import agents
from agentq.worker.drain import LEAVE_SECONDS

ROOT = Path(__file__).parents[2]
COMPOSE = (ROOT / "docker-compose.yml").read_text()
DOCKERFILE = (ROOT / "deploy/Dockerfile").read_text()
EXAMPLE = (ROOT / ".env.example").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(COMPOSE)["services"]
VARIABLE = re.compile(r"\$\{(\w+)(?::([-?])((?:[^}])*))?\}")
DEFAULTS = {name: default for name, kind, default in VARIABLE.findall(COMPOSE) if kind == "-"}
# What a setting is called, wherever it stands, and nothing of a longer word.
SETTING = re.compile(rf"\b{PREFIX}[A-Z_]+\b")


def seconds(duration: str) -> int:
    number, unit = int(duration[:-1]), duration[-1]
    return number * {"s": 1, "m": 60}[unit]


def instructions() -> list[tuple[str, str]]:
    """Of the Dockerfile: the word and what follows it, continued lines joined."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE, flags=re.MULTILINE).replace("\\\n", " ")
    parts = (line.partition(" ") for line in text.splitlines())
    return [(word, rest.strip()) for word, _, rest in parts if word]


def redis_settings() -> dict[str, str]:
    lines = (ROOT / "deploy/redis.conf").read_text().splitlines()
    return {name: value for name, _, value in (x.partition(" ") for x in lines if x and x[0] != "#")}


@pytest.mark.parametrize("service", SERVICES)
def test_no_service_may_become_root_write_beside_its_volume_or_log_without_end(service: str):
    has = SERVICES[service]
    assert (has["read_only"], has["cap_drop"], has["tmpfs"]) == (True, ["ALL"], ["/tmp"])
    assert has["security_opt"] == ["no-new-privileges:true"]
    assert has["logging"] == {"driver": "local"}
    assert (has["restart"], has["init"]) == ("unless-stopped", True)


@pytest.mark.parametrize("service", SERVICES)
def test_every_port_is_published_on_the_loopback_interface_only(service: str):
    assert all(port.startswith("127.0.0.1:") for port in SERVICES[service].get("ports", []))


def test_redis_has_no_password_and_so_no_port():
    assert "ports" not in SERVICES["redis"]
    assert redis_settings()["protected-mode"] == "no"


def test_flower_does_not_start_without_a_password_and_the_file_has_none():
    login = SERVICES["flower"]["environment"]["FLOWER_BASIC_AUTH"]
    assert VARIABLE.findall(login)[1][:2] == ("FLOWER_PASSWORD", "?")
    assert VARIABLE.sub("", login) == ":"


def test_a_worker_has_the_time_to_drain_before_it_is_killed():
    assert seconds(SERVICES["worker"]["stop_grace_period"]) > Settings().drain_seconds + LEAVE_SECONDS


def test_the_heartbeat_file_is_written_several_times_before_it_counts_as_old():
    assert 'find "$AGENTQ_HEARTBEAT_FILE" -mmin -1' in dict(instructions())["HEALTHCHECK"]
    assert Settings().lease_seconds < 60 / 3


@pytest.mark.parametrize("text", [COMPOSE, DOCKERFILE, EXAMPLE], ids=["compose", "Dockerfile", "example"])
def test_every_agentq_variable_is_a_setting(text: str):
    found = SETTING.findall(text)
    assert found
    assert {name.removeprefix(PREFIX).lower() for name in found} <= set(NAMES)


def test_the_example_names_what_the_file_reads_with_its_defaults():
    """Also what is only handed on: a key without a value."""
    handed_on = {name for name, value in SERVICES["worker"]["environment"].items() if value is None}
    shown = dict(re.findall(r"^#?([A-Z_]+)=(.*)$", EXAMPLE, re.MULTILINE))
    assert set(shown) == {name for name, *_ in VARIABLE.findall(COMPOSE)} | handed_on
    assert {name: value for name, value in shown.items() if value} == DEFAULTS


def test_only_the_worker_has_the_providers_keys():
    given = [name for name, has in SERVICES.items() if "OPENAI_API_KEY" in has.get("environment", {})]
    assert given == ["worker"]


def test_the_folder_that_is_mounted_by_default_has_the_demos_agents_and_rows():
    folder = ROOT / DEFAULTS["AGENTS"]
    module, _, attribute = DEFAULTS["AGENTQ_APP"].partition(":")
    assert folder / f"{module}.py" == Path(agents.__file__)
    demo = getattr(agents, attribute)
    assert "orders-no-detection" in demo.agents
    assert (folder / "rows.jsonl").is_file()


def test_the_image_is_of_this_version_and_of_a_python_that_is_supported():
    assert f'version="{PROJECT["version"]}"' in DOCKERFILE
    python = re.search(r"^ARG PYTHON_IMAGE=python:(3\.\d+)-slim$", DOCKERFILE, re.MULTILINE)
    assert python
    assert f"Programming Language :: Python :: {python[1]}" in PROJECT["classifiers"]


def test_the_image_has_extras_that_there_are():
    extras = re.search(r"agentq-\*\.whl\)\[([\w,]+)\]", DOCKERFILE)
    assert extras
    assert "flower" in extras[1].split(",")
    assert set(extras[1].split(",")) <= set(PROJECT["optional-dependencies"])


def test_the_image_is_not_roots_in_the_end():
    users = [rest for word, rest in instructions() if word == "USER"]
    assert users
    assert not users[-1].startswith(("0", "root"))


def test_all_that_the_image_is_built_from_is_given_to_the_engine_and_nothing_else():
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    given = {line[1:] for line in ignored if line.startswith("!")}
    copied = {
        name
        for word, rest in instructions()
        if word == "COPY" and not rest.startswith("--from")
        for name in rest.split()[:-1]
    }
    assert given == copied
    assert "*" in ignored
    assert all((ROOT / name).exists() for name in copied)


def test_redis_keeps_what_agentq_needs_kept():
    has = redis_settings()
    assert (has["appendonly"], has["appendfsync"], has["maxmemory-policy"]) == (
        "yes",
        "everysec",
        "noeviction",
    )
    # As the embedded server's: a data folder that any Redis or Valkey reads.
    assert has["aof-use-rdb-preamble"] == "no"


def test_every_line_of_redis_conf_has_its_reason():
    lines = (ROOT / "deploy/redis.conf").read_text().splitlines()
    settings = [at for at, line in enumerate(lines) if line and not line.startswith("#")]
    bare = [lines[at] for at in settings if not lines[at - 1].startswith("#")]
    assert bare == []


def test_the_throw_away_engine_has_stand_ins_for_the_images_that_are_named():
    engine = (ROOT / "tests/compose/engine.sh").read_text()
    python = re.search(r"^ARG PYTHON_IMAGE=(\S+)$", DOCKERFILE, re.MULTILINE)
    assert python
    assert f"PYTHON=docker.io/library/{python[1]}\n" in engine
    assert f"REDIS=docker.io/library/{DEFAULTS['REDIS_IMAGE']}\n" in engine
