"""docs/testing.md lists the faults that there are, as they say themselves."""

from __future__ import annotations

import re
from pathlib import Path

from agentq.testing.provider.catalogue import CATALOGUE

DOCS = Path(__file__).parents[4] / "docs" / "testing.md"


def test_the_table_of_faults_is_complete_and_right():
    rows = re.findall(r"^\| `(\w+)` \| (.*) \| ([\w, ]+) \|$", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    listed = {name: (says, where) for name, says, where in rows}
    there = {
        name: (known.says, "all" if len(known.dialects) == 3 else ", ".join(known.dialects))
        for name, known in CATALOGUE.items()
    }
    assert listed == there
