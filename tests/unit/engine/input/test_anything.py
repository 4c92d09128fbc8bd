"""Whatever bytes come in, what comes out is rows, or sentences of one line: never another error."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentq.core.errors import UsageError
from agentq.engine.input import FORMS, parse_map, read_rows
from agentq.engine.rows import Row

# Words that lead far into the readers; everything else falls at their first door.
WORDS = [
    *("input", "custom_id", "agent", "metadata", "context", "max_usd", "priority", "method", "url", "body"),
    *("params", "model", "messages", "system", "instructions", "n", "tools", "background", "type", "text"),
    *("role", "content", "user", "assistant", "POST", "/v1/chat/completions", "/v1/responses", "input_text"),
    *("1e999999999", "0.1", "-1", "NaN", "\ud800", "x\ny"),
]
KEYS = st.sampled_from(WORDS) | st.text(max_size=3)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-1, 12)
    | st.floats()
    | st.sampled_from(WORDS)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=15,
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["user", "system", "assistant"]) | VALUES,
            "content": st.just("Hi") | VALUES,
        },
        optional={"type": VALUES, "name": VALUES},
    ),
    max_size=3,
)
LINES = (
    st.dictionaries(KEYS, VALUES, max_size=6)
    | st.fixed_dictionaries({"input": MESSAGES | VALUES}, optional=dict.fromkeys(WORDS[1:7], VALUES))
    | st.fixed_dictionaries(
        {
            "custom_id": st.just("t") | VALUES,
            "method": st.just("POST"),
            "url": st.sampled_from(["/v1/chat/completions", "/v1/responses"]) | VALUES,
            "body": st.fixed_dictionaries(
                {"model": st.just("m") | VALUES, "messages": MESSAGES | VALUES, "input": MESSAGES | VALUES},
                optional=dict.fromkeys(("n", "tools", "background", "instructions", "stream"), VALUES),
            ),
        }
    )
    | st.fixed_dictionaries(
        {
            "params": st.fixed_dictionaries(
                {"model": st.just("m") | VALUES, "messages": MESSAGES | VALUES}, optional={"system": VALUES}
            )
        }
    )
)
MAPS = [None, parse_map(["input={input} {body}", "priority={n}"]), parse_map(["metadata.x=y"])]
QUICK = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def check(path: Path, data: bytes, **options: Any) -> None:
    path.write_bytes(data)
    with contextlib.suppress(UsageError):  # an InputError is one
        for where, found in read_rows(str(path), **options):
            assert where.startswith(f"{path}:")
            if isinstance(found, Row):
                assert len(found.content_hash) == 16
                assert found.messages()
            else:
                assert found.isprintable(), found
                assert len(found) <= 600


@QUICK
@given(lines=st.lists(LINES, min_size=1, max_size=3), agent=st.sampled_from(["", "orders"]))
@pytest.mark.parametrize("mapping", MAPS)
def test_objects(tmp_path, mapping, lines, agent):
    data = "\n".join(json.dumps(line) for line in lines).encode()
    check(tmp_path / "in.jsonl", data, agent=agent, mapping=mapping)


@QUICK
@given(data=st.binary(max_size=60) | st.text('",;\t\n\r{}[]ab\x00', max_size=60).map(str.encode))
@pytest.mark.parametrize("form", [None, *FORMS])
def test_bytes(tmp_path, form, data):
    check(tmp_path / "in", data, form=form)


@QUICK
@given(text=st.text('",;\t\n\r{}ab', max_size=60), separator=st.sampled_from(",;\t"))
@pytest.mark.parametrize("mapping", MAPS[::2])
def test_tables(tmp_path, mapping, text, separator):
    header = separator.join(["a", "b", "priority"])
    check(tmp_path / "in.csv", f"{header}\n{text}".encode(), mapping=mapping)
