from agentq.agent import Thread
from agentq.engine.cache import ThreadCache
from agentq.engine.snapshot import Snapshot


def snapshot(size: int) -> Snapshot:
    return Snapshot(Thread(), bytes=size)


def test_a_thread_is_taken_out_once_with_the_commit_after_which_it_was_kept():
    cache, kept = ThreadCache(), snapshot(10)
    cache.put("r", "c1", kept)
    assert cache.take("r") == ("c1", kept)
    assert cache.take("r") == ("", None)


def test_the_longest_unused_go_first_when_there_is_no_room():
    cache = ThreadCache(bytes_max=100)
    for name in ("a", "b", "c"):
        cache.put(name, "c1", snapshot(40))
    assert len(cache) == 2
    assert cache.take("a") == ("", None)
    assert cache.take("b")[0] == "c1"
    cache.put("d", "c1", snapshot(40))
    assert len(cache) == 2


def test_a_thread_that_is_larger_than_the_room_is_not_kept():
    cache = ThreadCache(bytes_max=100)
    cache.put("a", "c1", snapshot(101))
    assert len(cache) == 0
    cache.put("b", "c1", snapshot(100))
    assert len(cache) == 1


def test_keeping_a_run_again_replaces_what_was_kept():
    cache = ThreadCache(bytes_max=100)
    cache.put("a", "c1", snapshot(60))
    cache.put("a", "c2", snapshot(60))
    assert len(cache) == 1
    assert cache.take("a")[0] == "c2"
