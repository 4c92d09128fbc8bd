"""When a case is over, and what is said of one in which no worker did anything."""

from __future__ import annotations

from threading import Event
from typing import Any

import pytest

from agentq import AgentQ
from agentq.testing.case import Case
from agentq.testing.nursery import Child
from agentq.testing.play import Play
from agentq.testing.stage import BATCH, Ground, Scene


class Unmanned:
    """A nursery whose processes do nothing, and live until they are stopped."""

    def start(self, life):
        return Child(0, life.arm)

    def stop(self, child):
        child.code = 0


class SubmittedMeanwhile(Play):
    """The submitter has done its work just after somebody has looked for what is live."""

    looks = 0

    def _decide(self):
        self.looks += 1
        if self.looks == 1:
            self.app.submit_many(None, [{"input": "go on", "agent": "desk"}], batch=BATCH)
            self.played.children[0].code = 0


@pytest.fixture
def play(server, namespace, redis_client, tmp_path):
    user = AgentQ("mine")
    user.agent("desk", model="scripted")
    ground = Ground("mine:app", server.url, server.broker_url, str(tmp_path))
    scene = Scene(namespace, str(tmp_path))
    case = Case("step.after_claim")
    nursery: Any = Unmanned()
    return SubmittedMeanwhile(case, scene, ground, nursery, user, seconds=0.3, stopping=Event())


def test_a_case_is_not_over_while_what_was_just_submitted_has_not_ended(play):
    assert play.run().trouble
    assert play.looks > 1


def test_a_case_whose_worker_never_came_to_work_is_said_as_that_with_what_to_type(play):
    played = play.run()
    assert (played.idle, played.reached) == (True, False)
    assert played.trouble == (
        "no worker came to work in 0 s, so nothing was tested: "
        "try --only 'step.after_claim/none' with fewer --jobs"
    )
