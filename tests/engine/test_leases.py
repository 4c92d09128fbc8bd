"""Leases by a clock of the test: renewed together, trusted a little less long than the server would."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from agentq.core.records import Lease, Settlement
from agentq.engine.leases import MARGIN, LeaseLostError, Leases
from tests.support.harness import Clock

LEASE_MS = 10_000
TERM = 10 * (1 - MARGIN)


class Server:
    """Answers renewals as it is told, and may take its time."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.answers: dict[str, str] = {}
        self.takes = 0.0
        self.calls: list[list[str]] = []

    def renew(self, leases: Sequence[Lease], lease_ms: int) -> list[str]:
        assert lease_ms == LEASE_MS
        self.calls.append(sorted(lease.run_id for lease in leases))
        self.clock.seconds += self.takes
        return [self.answers.get(lease.run_id, "OK") for lease in leases]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def server(clock: Clock) -> Server:
    return Server(clock)


@pytest.fixture
def leases(clock: Clock, server: Server) -> Leases:
    return Leases(server, lease_ms=LEASE_MS, longest_seconds=100, now=clock)


def test_a_lease_is_trusted_for_its_term_less_the_margin(leases: Leases, clock: Clock):
    with leases.keep(Lease("r1", "1-x", 0), sent_at=clock()) as hold:
        clock.seconds += TERM
        hold.check()
        clock.seconds += 0.001
        with pytest.raises(LeaseLostError, match="r1: the lease was not renewed in time"):
            hold.check()


def test_the_term_begins_when_the_claim_was_sent_not_when_it_was_answered(leases: Leases, clock: Clock):
    with (
        leases.keep(Lease("r1", "1-x", 0), sent_at=clock() - TERM - 1) as hold,
        pytest.raises(LeaseLostError),
    ):
        hold.check()


def test_a_renewal_counts_from_when_it_was_sent(leases: Leases, clock: Clock, server: Server):
    with leases.keep(Lease("r1", "1-x", 0), sent_at=clock()) as hold:
        clock.seconds += 5
        server.takes = 3
        leases.renew()
        clock.seconds += TERM - 3
        hold.check()
        clock.seconds += 0.001
        with pytest.raises(LeaseLostError):
            hold.check()


def test_a_late_answer_to_an_old_renewal_takes_nothing_away(leases: Leases, clock: Clock):
    with leases.keep(Lease("r1", "1-x", 0), sent_at=clock()) as hold:
        hold.renewed(clock() + 5)
        hold.renewed(clock() - 5)
        clock.seconds += 5 + TERM
        hold.check()


@pytest.mark.parametrize(
    "answer, why", [("LOST", "the lease is lost"), ("CANCELLING", "the run is being cancelled")]
)
def test_a_lease_that_the_server_does_not_renew_is_over_at_once(leases, clock, server, answer, why):
    with (
        leases.keep(Lease("r1", "1-x", 0), sent_at=clock()) as one,
        leases.keep(Lease("r2", "1-y", 0), sent_at=clock()) as other,
    ):
        server.answers = {"r1": answer}
        leases.renew()
        with pytest.raises(LeaseLostError, match=f"r1: {why}"):
            one.check()
        other.check()
        server.answers = {}
        leases.renew()
        with pytest.raises(LeaseLostError, match=why):
            one.check()


def test_all_leases_are_renewed_in_one_call_and_only_while_they_are_held(leases, clock, server):
    with leases.keep(Lease("r1", "1-x", 0), sent_at=clock()):
        with leases.keep(Lease("r2", "1-y", 0), sent_at=clock()):
            assert len(leases) == 2
            leases.renew()
        leases.renew()
    assert len(leases) == 0
    leases.renew()
    assert server.calls == [["r1", "r2"], ["r1"], []]


def test_a_lease_is_let_go_also_when_its_step_fails(leases: Leases, clock: Clock):
    with pytest.raises(ZeroDivisionError), leases.keep(Lease("r1", "1-x", 0), sent_at=clock()):
        _ = 1 / 0
    assert len(leases) == 0


def test_a_step_that_takes_longer_than_any_may_is_no_longer_renewed(leases, clock, server):
    with leases.keep(Lease("r1", "1-x", 0), sent_at=clock()) as hold:
        clock.seconds += 100
        leases.renew()
        hold.check()
        clock.seconds += 0.001
        leases.renew()
        with pytest.raises(LeaseLostError, match="longer than any may"):
            hold.check()
    assert server.calls == [["r1"], []]


def test_what_a_step_has_at_hand_is_known_to_whoever_cuts_it(leases: Leases, clock: Clock):
    in_full = Settlement("1", "forfeit", 7, 8)
    with leases.keep(Lease("r1", "1-x", 0), sent_at=clock()) as hold:
        hold.begin("model call", in_full)
        assert (hold.doing, hold.flight) == ("model call", in_full)
        hold.begin("tools")
        assert (hold.doing, hold.flight) == ("tools", None)


def test_a_step_that_is_cut_begins_nothing_more(leases: Leases, clock: Clock):
    in_full = Settlement("1", "forfeit", 7, 8)
    with leases.keep(Lease("r1", "1-x", 0), sent_at=clock()) as hold:
        hold.begin("model call", in_full)
        assert hold.cut("the worker stops") == in_full
        with pytest.raises(LeaseLostError, match="r1: the worker stops"):
            hold.begin("tools")
        assert (hold.doing, hold.flight) == ("model call", in_full)
        with pytest.raises(LeaseLostError):
            hold.check()


def test_closed_leases_admit_nobody_and_renew_what_is_held(leases: Leases, clock: Clock, server: Server):
    with leases.admit() as admitted, leases.keep(Lease("r1", "1-x", 0), sent_at=clock()) as hold:
        assert admitted
        leases.close()
        with leases.admit() as late:
            assert not late
            assert leases.at_work == 1
        assert leases.held() == {hold}
        leases.renew()
    assert server.calls == [["r1"]]
    assert leases.at_work == 0


def test_a_step_that_fails_is_no_longer_at_work(leases: Leases):
    with pytest.raises(ZeroDivisionError), leases.admit():
        _ = 1 / 0
    assert leases.at_work == 0
