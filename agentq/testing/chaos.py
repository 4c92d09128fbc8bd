"""The whole: an app's agents through every crash point and every fault, beside an undisturbed run."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

from agentq.app import AgentQ
from agentq.core.errors import AgentQError
from agentq.core.failpoints import FAILPOINTS
from agentq.core.lifecycle import StopReason
from agentq.testing.case import UNDISTURBED, Case, chosen, matrix
from agentq.testing.files import read
from agentq.testing.nursery import Nursery, nursery
from agentq.testing.plan import Plan
from agentq.testing.play import Play, Played
from agentq.testing.stage import PASSES, ROWS, Ground, Scene
from agentq.testing.verdict import Facts, RunFacts, Violation, facts_of, judge, repeated
from agentq.worker.embedded import EmbeddedServer

JOBS = min(64, 16 * (os.cpu_count() or 1))
"""Cases at once. They mostly wait: for leases to end, and for hints to be sent again."""
CASE_SECONDS = 90.0
"""How long a case may take beyond ten times as long as the undisturbed one."""
PASSES_OF_A_POINT = 3
_LONGEST = ("lost", "late")
"""Faults that wait the longest: they begin first, so that none is left alone at the end."""
_SERVER = "server"
WHY_NOT: Mapping[str, str] = {
    "step.after_wait": "no call of the script waits for a person",
    "step.after_spawn": "no tool of the script starts children",
    "step.after_gather": "no tool of the script waits for children",
    "step.after_repair": "no answer is to be repaired: no agent has an output, or its answer fits",
    "step.after_summary": "no run outgrows its model's window",
    "step.after_convert": "no run is stopped, so there is no closing turn",
    "step.after_closing": "no run is stopped, so there is no closing turn",
    "step.after_commit": "each run has one step",
    "step.after_model_commit": "no step goes on to its tools at once",
    "step.after_tools": "the script calls no tools",
    "effect.after_begin": "the script calls no tool with a side effect",
    "effect.after_tool": "the script calls no tool with a side effect",
    "effect.after_done": "the script calls no tool with a side effect",
    "schedule.after_claim": "only a schedule has it, and the script makes none",
    "schedule.after_load": "only a schedule has it, and the script makes none",
    "notice.after_claim": "only a worker comes by it, and the script waits for no notice",
    "notice.after_send": "only a batch with a URL to tell has it",
}
"""Points that an app need not come by, and what it is without then."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One case, and what does not hold in it."""

    case: Case
    seconds: float
    violations: list[Violation]
    folder: Path
    """Where the logs of its processes are."""
    repeated: Mapping[str, int] = field(default_factory=dict)
    """Idempotent tools that were called more than once with one key, each with how often at most."""
    untested: bool = False
    """Whether nobody came to the crash, and nothing else is wrong: the machine may have been too busy."""


@dataclass(slots=True)
class Report:
    """What came of it all."""

    outcomes: list[Outcome] = field(default_factory=list)
    undisturbed: list[tuple[str, str, int]] = field(default_factory=list)
    """Of each row its agent, its stop reason and its steps when nothing goes wrong."""
    unreached: dict[str, str] = field(default_factory=dict)
    """Points that the app does not come by, with the reason."""
    threads_of_app: list[str] = field(default_factory=list)
    """Threads that the app starts when it is imported. They are in none of the processes of a case."""
    seconds: float = 0.0
    folder: Path | None = None
    """Where the logs of all processes are, a folder for each case; None when nothing was found."""

    @property
    def violations(self) -> list[Violation]:
        """All of them, in the order of the cases."""
        return [violation for outcome in self.outcomes for violation in outcome.violations]

    @property
    def repeated(self) -> dict[str, tuple[int, int]]:
        """Of each such tool how often it was called with one key at most, and in how many cases."""
        found: dict[str, tuple[int, int]] = {}
        for outcome in self.outcomes:
            for name, count in outcome.repeated.items():
                most, cases = found.get(name, (0, 0))
                found[name] = max(most, count), cases + 1
        return dict(sorted(found.items()))


def run_chaos(
    reference: str,
    app: AgentQ,
    plan: Plan,
    *,
    only: Sequence[str] = (),
    passes: int = PASSES_OF_A_POINT,
    jobs: int = JOBS,
    begin: Callable[[int], None] | None = None,
    progress: Callable[[Outcome], None] | None = None,
) -> Report:
    """Play every case of an app. Its tools really run.

    Args:
        reference: `module:app`, importable from the current directory.
        app: that app, imported here too.
        plan: what is played in each case.
        only: patterns of names of cases.
        passes: at how many passes of each point a process dies, a case each.
        jobs: cases at once.
        begin: told how many cases there are.
        progress: told of each case that is over.

    Raises:
        UsageError: when the app cannot be imported in another process, or `only` matches nothing.
        AgentQError: when the undisturbed case does not hold what all must.
        UnavailableError: when no server can be started.
    """
    began = time.monotonic()
    report = Report()
    folder = Path(tempfile.mkdtemp(prefix="agentq-chaos-"))
    try:
        with _ground(reference, folder) as ground, nursery(ground) as children:
            report.threads_of_app = children.threads_of_app
            (folder / ROWS).write_text(json.dumps(plan.rows), encoding="utf-8")
            stage = _Stage(ground, children, app)
            undisturbed, passed = stage.undisturbed()
            report.undisturbed = [_ended(facts) for facts in undisturbed.runs[: undisturbed.rows]]
            report.unreached = {point: WHY_NOT[point] for point in WHY_NOT if not passed.get(point)}
            cases = chosen(matrix(passed, passes=passes), only)
            if begin is not None:
                begin(len(cases))
            order = sorted(cases, key=lambda case: case.fault not in _LONGEST)

            def over(outcome: Outcome) -> None:
                report.outcomes.append(outcome)
                if progress is not None:
                    progress(outcome)

            _play_all(stage, order, undisturbed, jobs, over)
        report.outcomes.sort(key=lambda outcome: cases.index(outcome.case))
        if missed := _missed(passed, undisturbed):
            report.outcomes.insert(0, Outcome(UNDISTURBED[0], 0.0, missed, stage.folder(UNDISTURBED[0])))
        report.folder = folder if report.violations else None
    finally:
        if report.folder is None:
            shutil.rmtree(folder, ignore_errors=True)
    report.seconds = time.monotonic() - began
    return report


class _Stage:
    """Where the cases of one app are played."""

    def __init__(self, ground: Ground, children: Nursery, app: AgentQ) -> None:
        self._ground = ground
        self._children = children
        self._app = app
        self._case_seconds = CASE_SECONDS
        self.stopping = Event()
        """Set when somebody wants no more of it: what is being played is broken off."""

    def folder(self, case: Case, *, again: bool = False) -> Path:
        """What the processes of a case write down is here; when it is played again, in another folder."""
        slug = case.name.replace("/", "-").replace("#", "-")
        return Path(self._ground.folder) / (f"{slug}-again" if again else slug)

    def _play(self, case: Case, *, again: bool = False) -> Played:
        folder = self.folder(case, again=again)
        scene = Scene(
            namespace=f"chaos-{folder.name}",
            folder=str(folder),
            delivery=case.delivery,
            pace=case.pace,
        )
        return Play(
            case,
            scene,
            self._ground,
            self._children,
            self._app,
            seconds=self._case_seconds,
            stopping=self.stopping,
        ).run()

    def undisturbed(self) -> tuple[Facts, Counter[str]]:
        """What comes of the rows when nothing goes wrong, and how often a process came by each point.

        Raises:
            AgentQError: when they do not end, or something does not hold already.
        """
        with _pool(len(UNDISTURBED), self) as pool:
            both = list(pool.map(self._play, UNDISTURBED))
        for played in both:
            if played.trouble:
                raise _fails_already(played.trouble, played)
        facts = facts_of(both[0], self._ground, self._app)
        for run in facts.runs:
            if run.record.stop_reason is StopReason.MODEL_ERROR:
                raise _fails_already(f"agent {run.record.spec.agent}: {run.record.stop_detail}", both[0])
        for played in both:
            for violation in judge(played, facts_of(played, self._ground, self._app), facts):
                raise _fails_already(violation.sentence, played)
        self._case_seconds = CASE_SECONDS + 10 * both[0].seconds
        passed: Counter[str] = Counter()
        for counted in read(Path(both[0].scene.folder) / PASSES):
            passed += Counter(counted)
        return facts, passed

    def outcome(self, case: Case, undisturbed: Facts, *, again: bool = False) -> Outcome:
        """Play one case and look at what it has left behind. `again`: it was played before."""
        played = self._play(case, again=again)
        calls: Mapping[str, int] = {}
        if played.trouble:
            found = [Violation(case.name, "", "end", played.trouble)]
        else:
            facts = facts_of(played, self._ground, self._app)
            found, calls = judge(played, facts, undisturbed), repeated(facts)
        nobody_came = not played.reached and not found
        if nobody_came:
            sentence = (
                f"no process came to its crash, so nothing was tested: "
                f"try --only {case.name!r} with fewer --jobs"
            )
            found = [Violation(case.name, "", "end", sentence)]
        folder = Path(played.scene.folder)
        return Outcome(case, played.seconds, found, folder, calls, untested=nobody_came or played.idle)


def _play_all(
    stage: _Stage, cases: Sequence[Case], undisturbed: Facts, jobs: int, over: Callable[[Outcome], None]
) -> None:
    """Tell of each case that is over. One in which nothing was tested is first played again, by itself."""
    untested: list[Outcome] = []
    with _pool(jobs, stage) as pool:
        for done in as_completed([pool.submit(stage.outcome, case, undisturbed) for case in cases]):
            outcome = done.result()
            if outcome.untested:
                untested.append(outcome)
            else:
                over(outcome)
        busy = True
        for outcome in untested:
            if not busy:  # the others were not for want of room either, and would take as long again
                over(outcome)
                continue
            again = pool.submit(stage.outcome, outcome.case, undisturbed, again=True).result()
            busy = not again.untested
            over(again)


@contextmanager
def _pool(jobs: int, stage: _Stage) -> Iterator[ThreadPoolExecutor]:
    """Threads that play cases. On Ctrl-C, as on any error, none is begun any more."""
    with ThreadPoolExecutor(jobs, thread_name_prefix="agentq-case") as pool:
        try:
            yield pool
        except BaseException:
            stage.stopping.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _fails_already(sentence: str, played: Played) -> AgentQError:
    said = [
        line
        for path in sorted(Path(played.scene.folder).glob("*.log"))
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines()
    ]
    hint = "look at the script and the tools: no process was killed yet"
    return AgentQError(
        f"the undisturbed case fails already: {sentence}", hint="\n  ".join([hint, *said[-10:]])
    )


def _ended(facts: RunFacts) -> tuple[str, str, int]:
    record = facts.record
    return record.spec.agent, record.stop_reason.value if record.stop_reason else "", record.steps


def _missed(passed: Mapping[str, int], undisturbed: Facts) -> list[Violation]:
    """The points that these runs must have come by, and have not: then nothing is shown about them."""
    wanted = [point for point in FAILPOINTS if point not in WHY_NOT and not point.startswith("rescue.")]
    if undisturbed.acts:
        wanted += [point for point in FAILPOINTS if point.startswith("effect.")]
    if any(run.record.steps > 1 for run in undisturbed.runs):
        wanted.append("step.after_commit")
    return [
        Violation(UNDISTURBED[0].name, "", "end", f"no process has come by {point}, and one must have")
        for point in wanted
        if not passed.get(point)
    ]


@contextmanager
def _ground(reference: str, folder: Path) -> Iterator[Ground]:
    """A server of our own, whose data are gone afterwards."""
    server = EmbeddedServer.start(folder / _SERVER)
    try:
        yield Ground(reference, server.url, server.broker_url, str(folder))
    finally:
        server.stop()
        shutil.rmtree(folder / _SERVER, ignore_errors=True)
