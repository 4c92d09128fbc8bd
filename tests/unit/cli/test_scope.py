"""The word for a scope: what it may be, and what is said about the others."""

from __future__ import annotations

import pytest

from agentq.cli.scope import base_of, parse_scope
from agentq.core.errors import UsageError


@pytest.mark.parametrize(
    "word, base",
    [
        ("global", "global"),
        ("global@day", "global"),
        ("tenant:acme", "tenant:acme"),
        ("tenant:acme@month", "tenant:acme"),
        ("tenant:joe@acme.com", "tenant:joe@acme.com"),
        ("tenant:joe@acme.com@day", "tenant:joe@acme.com"),
        ("batch:tickets-11.2", "batch:tickets-11.2"),
        ("run:run_ve080fgn959a", "run:run_ve080fgn959a"),
        ("model:openai:gpt-5-mini", "model:openai:gpt-5-mini"),
        ("model:meta/llama-3@20240620@day", "model:meta/llama-3@20240620"),
    ],
)
def test_what_may_be_a_scope(word: str, base: str) -> None:
    assert parse_scope(word) == word
    assert base_of(word) == base


@pytest.mark.parametrize(
    "word, sentence, hint",
    [
        (
            "tennant:acme",
            "'tennant:acme' is no scope (did you mean 'tenant:acme'?)",
            "a scope is global, tenant:",
        ),
        ("gloabl", "'gloabl' is no scope (did you mean 'global'?)", "a scope is global"),
        ("acme", "'acme' is no scope", "a scope is global"),
        ("", "'' is no scope", "a scope is global"),
        ("tenant", "'tenant' is no scope", "a scope is global"),
        ("tenant:", "'tenant:' names no tenant", "write tenant:NAME"),
        ("global:x", "there is one global", "write global"),
        ("tenant:a b", "'a b' cannot be the name of a tenant", ""),
        ("batch:a/b", "'a/b' cannot be the name of a batch", ""),
        ("model:a b", "'a b' cannot be the name of a model", ""),
        ("model:x@free:day", "cannot be the name of a model", ""),
        ("tenant:acme@day@month", "a window has no windows", "write tenant:acme@day"),
        ("tenant:acme@dya", "(did you mean tenant:acme@day?)", "the windows are @day and @month"),
        ("tenant:acme@monthly", "(did you mean tenant:acme@month?)", "the windows are @day and @month"),
        ("tenant:acme@day:2026-11-29", "is one day of tenant:acme", "tenant:acme@day names them all"),
        ("run:r@day", "a run has no days", "write run:r"),
    ],
)
def test_what_is_no_scope_is_one_sentence_with_the_nearest(word: str, sentence: str, hint: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_scope(word)
    assert sentence in str(refused.value)
    assert hint in refused.value.hint


def test_one_day_may_be_named_where_one_looks() -> None:
    assert parse_scope("tenant:acme@day:2026-11-29", period=True) == "tenant:acme@day:2026-11-29"
    assert parse_scope("global@month:2026-11", period=True) == "global@month:2026-11"


@pytest.mark.parametrize(
    "window, text",
    [
        ("day", "2026-11"),
        ("day", "2026-13-40"),
        ("day", "20261129"),
        ("month", "2026-13"),
        ("month", "2026-11-29"),
    ],
)
def test_a_day_or_a_month_that_there_is_not_is_refused(window: str, text: str) -> None:
    with pytest.raises(UsageError, match=f"'{text}' is no {window}"):
        parse_scope(f"tenant:acme@{window}:{text}", period=True)
