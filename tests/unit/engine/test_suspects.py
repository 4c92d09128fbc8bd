"""The one place for a suspect in a process."""

from __future__ import annotations

import pytest

from agentq.engine.suspects import Suspects


def test_one_has_the_place_and_another_finds_it_taken():
    suspects = Suspects()
    with suspects.place() as first, suspects.place() as second:
        assert (first.is_free, second.is_free) == (True, False)


def test_the_place_is_free_after_the_block_also_when_that_fails():
    suspects = Suspects()
    with pytest.raises(RuntimeError), suspects.place():
        raise RuntimeError
    with suspects.place() as place:
        assert place.is_free


def test_who_leaves_the_place_early_leaves_it_once():
    suspects = Suspects()
    with suspects.place() as first:
        first.leave()
        with suspects.place() as second:
            assert second.is_free
            first.leave()
            with suspects.place() as third:
                assert not third.is_free


def test_who_did_not_get_the_place_cannot_give_it_away():
    suspects = Suspects()
    with suspects.place():
        with suspects.place() as second:
            second.leave()
        with suspects.place() as third:
            assert not third.is_free
