"""`agentq prices`, with a file of one's own, without a server."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import Any

import pytest

from agentq.provider.pricefile import read_prices
from tests.unit.cli.fakes import invoke

APP = """
from agentq import AgentQ
from agentq.provider.pricing import ModelPricing
from agentq.provider.scripted import ScriptedClient

app = AgentQ("t", pricing={"mine-1": ModelPricing("mine-1", "0.5", "1.5", 1000)})
app.agent("good", model=ScriptedClient(["x"], model="mine-1"))
app.agent("seller", model=ScriptedClient(["x"], provider="groq", model="openai/gpt-oss-120b"))
"""


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AGENTQ_APP", raising=False)


@pytest.fixture
def mine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A prices_file with one model of its own and one of ours, dearer."""
    path = tmp_path / "mine.json"
    models = [
        {
            "id": "house-1",
            "input": 2_000_000,
            "output": 3_000_000,
            "tiers": [{"above": 10, "input": 5, "output": 6}],
        },
        {"provider": "openai", "id": "gpt-5", "input": 99_000_000, "output": 99_000_000},
    ]
    path.write_text(json.dumps({"format": 1, "models": models}))
    monkeypatch.setenv("AGENTQ_PRICES_FILE", str(path))
    return path


def test_list_shows_ours_and_over_them_the_users(mine: Path) -> None:
    shown = invoke("prices", "list", "--search", "GPT-5")
    assert shown.exit_code == 0
    lines = [line.split() for line in shown.stdout.splitlines()]
    assert lines[0][:3] == ["model", "provider", "input"]
    assert ["gpt-5", "openai", "99", "99", "?"] in lines
    assert ["gpt-5-mini", "openai", "0.25", "0.025", "2", "400000"] in lines
    assert "models, USD per million tokens" in shown.stderr


def test_list_has_a_line_for_each_tier(mine: Path) -> None:
    lines = [line.split() for line in invoke("prices", "list", "--search", "house").stdout.splitlines()[1:]]
    assert lines == [["house-1", "2", "3", "?"], ["0.000005", "0.000006", "10"]]


def test_list_of_a_provider_that_nobody_knows_is_a_sentence_with_the_nearest() -> None:
    refused = invoke("prices", "list", "--provider", "opnai")
    assert refused.exit_code == 2
    assert "no model of a provider 'opnai' is known (did you mean 'openai'?)" in refused.stderr


def test_list_as_json_is_the_format_of_the_file(mine: Path) -> None:
    shown = json.loads(invoke("prices", "list", "--json", "--provider", "openai").stdout)
    assert {entry["provider"] for entry in shown} == {"openai"}
    (ours,) = (entry for entry in shown if entry["id"] == "gpt-5")
    assert ours == {"provider": "openai", "id": "gpt-5", "input": 99_000_000, "output": 99_000_000}


def test_check_says_of_each_model_whether_it_has_a_price(mine: Path) -> None:
    checked = invoke("prices", "check", "house-1", "gpt-5o", "openai/gpt-oss-120b")
    assert checked.exit_code == 2
    assert checked.stdout.splitlines() == [
        "house-1: 2 in, 3 out",
        "gpt-5o: no price",
        "openai/gpt-oss-120b: no price",
    ]
    assert "did you mean 'gpt-5'?" in checked.stderr
    assert "groq:openai/gpt-oss-120b" in checked.stderr
    assert invoke("prices", "check", "house-1", "gpt-5").exit_code == 0


def test_check_without_a_model_checks_the_agents_of_the_app(tmp_path: Path) -> None:
    (tmp_path / "priced_app.py").write_text(APP)
    checked = invoke("prices", "check", "-A", "priced_app:app", "--json")
    assert checked.exit_code == 0
    assert json.loads(checked.stdout) == [
        {"agent": "good", "model": "mine-1", "priced": True},
        {"agent": "seller", "model": "openai/gpt-oss-120b", "priced": True},
    ]
    assert invoke("prices", "check", "-A", "priced_app:app", "mine-1").stdout == "mine-1: 0.5 in, 1.5 out\n"


def test_check_alone_reads_the_file(mine: Path) -> None:
    assert invoke("prices", "check").exit_code == 0
    mine.write_text('{"format": 1, "models": [{"id": "m", "input": 0.5, "output": 1}]}')
    refused = invoke("prices", "check")
    assert refused.exit_code == 2
    assert "mine.json: model 1 ('m'): input must be a whole number of pico-USD, not 0.5" in refused.stderr
    assert "write 500000" in refused.stderr


def test_import_writes_a_file_that_can_be_read_and_lists_what_it_skipped(tmp_path: Path) -> None:
    done = invoke("prices", "import", "--as-of", "2026-11-29")
    assert (done.exit_code, done.stdout) == (0, "")
    file = read_prices(tmp_path / "prices.json")
    assert file.as_of == "2026-11-29"
    skipped = [line for line in done.stderr.splitlines() if line.startswith("skipped ")]
    assert f"prices.json: {len(file.entries)} models, {len(skipped)} skipped" in done.stderr
    assert any("the time of the day" in line for line in skipped)


def test_import_goes_into_prices_file_and_keeps_what_is_by_hand(mine: Path) -> None:
    done = invoke("prices", "import", "--json", "-q")
    assert json.loads(done.stdout)["file"] == str(mine)
    assert done.stderr == ""
    kept = {entry.name: entry for entry in read_prices(mine).entries}
    assert kept["house-1"].input == 2_000_000
    assert kept["openai:gpt-5"].input == 99_000_000
    assert kept["openai:gpt-5-mini"].source == "genai-prices"


def test_import_to_standard_output_is_the_file(tmp_path: Path) -> None:
    done = invoke("prices", "import", "-o", "-", "-q")
    (tmp_path / "out.json").write_text(done.stdout)
    assert len(read_prices(tmp_path / "out.json").entries) > 500
    assert not (tmp_path / "prices.json").exists()


def test_import_refuses_to_overwrite_something_else(tmp_path: Path) -> None:
    (tmp_path / "prices.json").write_text("mine")
    assert invoke("prices", "import").exit_code == 2
    assert (tmp_path / "prices.json").read_text() == "mine"
    assert "cannot be written" in invoke("prices", "import", "-o", str(tmp_path / "none" / "x.json")).stderr


def test_diff_has_a_line_for_each_field_and_counts(tmp_path: Path) -> None:
    invoke("prices", "import", "-q", "--as-of", "2026-11-29")
    file = read_prices(tmp_path / "prices.json")
    same = invoke("prices", "diff", "prices.json", "--as-of", "2026-11-29")
    assert (same.exit_code, same.stdout) == (0, "")
    assert "0 models would change" in same.stderr
    changed = [
        {**entry.as_dict(), "input": 1_230_000, "max_output": 5} if entry.id == "gpt-5" else entry.as_dict()
        for entry in file.entries
        if entry.name != "openai:gpt-4o"
    ]
    gone = {"provider": "openai", "id": "gone", "input": 1, "output": 2, "source": "genai-prices"}
    (tmp_path / "prices.json").write_text(json.dumps({"format": 1, "models": [*changed, gone]}))
    differs = invoke("prices", "diff", "prices.json", "--as-of", "2026-11-29")
    assert differs.exit_code == 0
    assert differs.stdout.splitlines() == [
        "- openai:gone  0.000001 in, 0.000002 out",
        "+ openai:gpt-4o  2.5 in, 10 out",
        "~ openai:gpt-5  input: 1.23 → 1.25",
    ]
    assert "3 models would change" in differs.stderr
    as_json = json.loads(invoke("prices", "diff", "prices.json", "--as-of", "2026-11-29", "--json").stdout)
    assert as_json[2] == {"model": "openai:gpt-5", "field": "input", "old": 1_230_000, "new": 1_250_000}
    assert as_json[0]["new"] is None


def test_diff_without_a_file_is_of_the_built_in_catalogue() -> None:
    shown = invoke("prices", "diff", "--as-of", "1990-01-01")
    assert shown.exit_code == 0
    assert "built-in catalogue: " in shown.stderr


def test_without_the_package_one_sentence_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **options: Any) -> Any:
        if name.startswith("genai_prices"):
            raise ImportError(name)
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    refused = invoke("prices", "import")
    assert refused.exit_code == 2
    assert refused.stderr == (
        "error: importing prices needs the package genai-prices\n  pip install genai-prices\n"
    )


def test_a_verb_that_does_not_exist_is_a_sentence() -> None:
    refused = invoke("prices", "lst")
    assert refused.exit_code == 2
    assert refused.stderr.startswith("error: there is no verb 'prices lst' (did you mean 'list'?)")
    assert "list" in invoke("prices", "--help").stdout
