"""What holds for the repository as a whole. Import layers are `make check`'s."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_SKIPPED = {".venv", ".git", ".agentq", ".hypothesis", "__pycache__", "dist", "build", "node_modules"}
# In pieces, or this file would be the first to fail.
BUILD_MACHINE = ("/" + "work/", "shared" + "/")


def repository_files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode == 0 and listed.stdout:
        return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]
    return [
        path
        for path in ROOT.rglob("*")
        if path.is_file()
        and not any(p in _SKIPPED or p.endswith("_cache") for p in path.relative_to(ROOT).parts)
    ]


def test_no_file_names_a_place_on_the_machine_it_was_written_on():
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}"
        for path in repository_files()
        for number, line in enumerate(path.read_bytes().decode(errors="replace").splitlines(), start=1)
        if any(place in line for place in BUILD_MACHINE)
    ]
    assert not found, "\n".join(found)


def file_map(text: str) -> list[str]:
    """The paths in the fenced block that starts with `agentq/`, or nothing.

    A line is a name, then two spaces or more, then what it is; deeper indentation is deeper in the tree.
    """
    block = re.search(r"^```\w*\n(agentq/.*?)^```", text, re.DOTALL | re.MULTILINE)
    paths: list[str] = []
    parents: list[tuple[int, str]] = []
    for line in block[1].splitlines() if block else ():
        entry = re.match(r"([\s│├└─]*)([\w.*-]+/?)(?:\s{2,}|$)", line)
        if entry is None:
            continue
        depth, name = len(entry[1]), entry[2]
        while parents and parents[-1][0] >= depth:
            parents.pop()
        path = (parents[-1][1] if parents else "") + name
        paths.append(path)
        if name.endswith("/"):
            parents.append((depth, path))
    return paths


def test_a_file_map_is_read_as_it_is_meant():
    tree = "agentq/\n  cli/      commands\n    main.py  the first\n  app.py    users\ntests/      all\n"
    text = f"# x\n```text\n{tree}```\n"
    assert file_map(text) == ["agentq/", "agentq/cli/", "agentq/cli/main.py", "agentq/app.py", "tests/"]


@pytest.fixture
def readme_map() -> list[str]:
    paths = file_map((ROOT / "README.md").read_text())
    assert paths, "README.md has no file map"
    return paths


def test_everything_on_the_readmes_map_exists(readme_map):
    assert [path for path in readme_map if not list(ROOT.glob(path.rstrip("/")))] == []


def test_every_part_of_agentq_is_on_the_readmes_map(readme_map):
    listed = {path.rstrip("/") for path in readme_map}
    parts = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "agentq").iterdir()
        if not path.name.startswith("__") and (path.suffix == ".py" or (path / "__init__.py").exists())
    }
    assert parts - listed == set()
