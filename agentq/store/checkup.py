"""What must be true of every run, batch and key of a namespace, looked at while workers run.

Each run is read at one instant by a script of its own, and so is each entry of an index: what is found was
so. Counters over many runs are compared only where nothing has changed while these were read, and twice.
Nothing here adds money up: that is the audit's work.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from agentq.store.audit import chunks
from agentq.store.connect import Store
from agentq.store.owners import STAYS, owner_of
from agentq.store.rows import DROPPED
from agentq.store.scripts import Scripts, unexpected

CHUNK = 100
"""Runs, entries or keys that are looked at in one round trip."""
KEPT = 1_000
"""Findings of a kind that are kept; the others are only counted."""
LATE_MS = 120_000
"""How long a run may be due before it counts as forgotten: patience and a queue of rescues take less."""
LOST_KEY_MS = 7 * 86_400_000
"""How long a key is kept that had no end and belongs to nobody."""
RECOUNTS = 5
"""How often the runs of a batch are counted until nothing has changed meanwhile."""

_ROWS = ("feed", "loading", *(f"dropped:{reason.value}" for reason in DROPPED))
"""The lists of a batch that have its rows."""

_COUNTED = re.compile(r"(\S+)=(\d+)")
"""What a run has added to the counters of its batch: see `_counters.lua`."""
_SQUARES = "m:usd2"
"""Not compared: a sum of this size may be rounded."""

_CANCEL = "agentq cancel ends it"
_VERIFY = "agentq ledger verify says by how much, and where"
_WORKERS = "agentq doctor says whether a worker is alive; agentq worker starts one"
_REPORT = "this is a bug in agentq, or somebody wrote into its Redis: please report it"
_REPAIR = "agentq doctor --runs --repair puts it right"

_KINDS = {
    "state": ("its state is {}", f"a newer agentq knows it, or it is damaged: {_CANCEL}"),
    "unwatched": ("it is {} and not in `watch`: nobody will look at it", _REPAIR),
    "overdue": ("it has been due for {} s and nobody has looked at it", _WORKERS),
    "no_holder": ("a worker is at it, and its fence {!r} names none", _CANCEL),
    "no_reason": ("it has ended without a stop reason", _REPORT),
    "no_slot": (
        "it is {} and not among the runs in flight: more are admitted than there is room for",
        _REPAIR,
    ),
    "slot": ("it is {} and counts as in flight: its place is lost to others", _REPAIR),
    "half_slot": ("it is in flight, and not all sets of tenant {!r} or its batch say so", _REPAIR),
    "unlisted": ("it waits for money and is not in the list of {}: none wakes it", _REPAIR),
    "not_paused": ("it is held, and neither it nor its batch is paused", _REPAIR),
    "no_deadline": ("it waits without a deadline", _CANCEL),
    "nothing_awaited": ("it waits for children of which none is live", _REPAIR),
    "not_in_inbox": ("it waits for a person and is not in the inbox: nobody is asked", _REPAIR),
    "reservation": (
        "no worker is at it, and it holds the reservation {}",
        f"{_REPAIR}: it is charged in full, since nobody knows what its call has cost",
    ),
    "escrow": ("it has ended and holds an escrow of {}", f"what it holds is lost to its scopes: {_VERIFY}"),
    "descendants": ("it says that its live descendants are {}", _REPAIR),
    "idle": ("its account says that idle runs hold {}", _VERIFY),
    "no_batch": ("it is live and its batch {!r} is gone", _CANCEL),
    "not_open": ("it is live and not among the open runs of batch {!r}", _REPAIR),
    "endless": ("it is over and its key {} has no end", _REPAIR),
    "vanishing": ("it is not over and its key {} has an end: it will vanish", _REPAIR),
    "total": ("it says that it has {}", _REPORT),
    "ended": ("it says that the rows that have ended are {}", _REPAIR),
    "rows": ("it has the content of rows: {}", _REPORT),
    "starving": ("its rows, {} of them, may be admitted, and it takes no turns", _REPAIR),
    "counter": ("its counter {}", _REPAIR),
    "stray": ("it is in {} and does not belong there", _REPAIR),
    "unknown_list": (
        "runs wait in it for money, and `parked` does not name or count it: none is woken",
        _REPAIR,
    ),
    "lost": ("it has no end, and belongs to nobody that is there", _REPAIR),
    "unknown": (
        "agentq writes no key of this name",
        "a newer agentq does, or somebody else: look at it, then DEL it",
    ),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that must not be so."""

    code: str
    subject: str
    """What it is about: `run`, `batch`, `tenant`, `key` or `list`, and its name."""
    sentence: str
    repaired: bool
    advice: str
    """What a person can do."""


@dataclass(slots=True)
class Checkup:
    """What was looked at and what was found."""

    runs: Counter[str] = field(default_factory=Counter)
    """How many runs are in each state."""
    keys: int = 0
    batches: int = 0
    findings: list[Finding] = field(default_factory=list)
    """Of each kind the first 1,000."""
    found: Counter[str] = field(default_factory=Counter)
    """How many of each kind."""
    repaired: int = 0
    uncounted: list[str] = field(default_factory=list)
    """Batches that changed all the while, so that their counters were not compared with their runs."""
    _known: set[tuple[str, str, str]] = field(default_factory=set, repr=False)

    @property
    def violations(self) -> int:
        """How many are left: those that were not repaired."""
        return self.found.total() - self.repaired

    def add(self, code: str, subject: str, detail: str = "", *, repaired: bool = False) -> None:
        """Count a finding, once, and keep it if there is room."""
        if (code, subject, detail) in self._known:  # a key or an entry may be read twice
            return
        self._known.add((code, subject, detail))
        sentence, advice = _KINDS[code]
        self.found[code] += 1
        self.repaired += repaired
        if self.found[code] <= KEPT:
            self.findings.append(Finding(code, subject, sentence.format(detail), repaired, advice))


def examine(store: Store, *, repair: bool = False) -> Checkup:
    """Look at every run, index, batch and key of the namespace; with `repair`, put right what is safe.

    Repairing ends no run and gives no money back; a reservation that nobody holds is charged in full. What it
    does not touch, a person must see to. A second call finds only what is left.

    Raises:
        SchemaError: when the state is newer than this release understands; nothing was changed.
    """
    return _Examination(store, repair=repair).whole()


class _Examination:
    """One look at everything."""

    def __init__(self, store: Store, *, repair: bool) -> None:
        self._client = store.client
        self._keys = store.keys
        self._list = store.batches
        self._scripts = Scripts(store.client, store.keys.prefix)
        self._repair = "1" if repair else ""
        self._seen: set[str] = set()
        self._checkup = Checkup()

    def whole(self) -> Checkup:
        self._look_at_members("watch", [])  # a state that is too new is refused before anything is changed
        lists, batches, slots = set[str](), set[str](), set[str]()
        for names in chunks(self._names(), CHUNK):
            self._checkup.keys += len(names)
            self._look_at_runs(name[4:] for name in names if name.startswith("run:") and name.count(":") == 1)
            self._look_at_keys(names)
            lists.update(name for name in names if name.startswith("parked:"))
            slots.update(name for name in names if name.startswith("slots"))
            batches.update(name[6:] for name in names if name.startswith("batch:") and name.count(":") == 1)
        self._look_at_indexes(lists, batches, slots)
        for batch in sorted(batches):
            self._look_at_batch(batch)
        return self._checkup

    def _names(self) -> Iterator[str]:
        """Every key of the namespace without its prefix. A few may come twice."""
        prefix = self._keys.prefix
        for key in self._client.scan_iter(match=f"{prefix}*", count=1_000):
            yield str(key).removeprefix(prefix)

    # ── runs ────────────────────────────────────────────────────────────────────────────────────

    def _look_at_runs(self, run_ids: Iterable[str]) -> None:
        new = [run_id for run_id in dict.fromkeys(run_ids) if run_id not in self._seen]
        self._seen.update(new)
        for state in self._look_again(new):
            self._checkup.runs[state] += 1

    def _look_again(self, run_ids: Sequence[str]) -> list[str]:
        """Look at runs, also such as were looked at before; answers the states of those that are there."""
        calls = [(run_id, self._repair, LATE_MS) for run_id in run_ids]
        states = []
        for run_id, reply in zip(run_ids, self._scripts.call_many("run_check", calls), strict=True):
            match reply:
                case ["GONE"]:
                    pass
                case ["OK", state, parent, list(found)]:
                    states.append(state)
                    repaired = self._found(f"run {run_id}", found)
                    if parent and "descendants" in repaired:
                        self._look_again([parent])  # it counts what its child says
                case _:
                    raise unexpected("run_check", reply)
        return states

    def _found(self, subject: str, found: Sequence[str | int]) -> set[str]:
        """Keep what a script has found about a run or batch; answers the kinds that it has repaired."""
        repaired = set()
        for code, detail, mended in chunks(found, 3):
            self._checkup.add(str(code), subject, str(detail), repaired=mended == 1)
            if mended == 1:
                repaired.add(str(code))
        return repaired

    # ── keys ────────────────────────────────────────────────────────────────────────────────────

    def _look_at_keys(self, names: Sequence[str]) -> None:
        asked: list[str | int] = [LOST_KEY_MS if self._repair else ""]
        for name in names:
            owner = owner_of(name)
            if owner is None:
                self._checkup.add("unknown", f"key {name}")
            elif owner != STAYS:
                asked += [name, owner]
        match self._scripts.call("key_check", *asked):
            case ["OK", *lost]:
                for name in lost:
                    self._checkup.add("lost", f"key {name}", repaired=bool(self._repair))
            case reply:
                raise unexpected("key_check", reply)

    # ── indexes ─────────────────────────────────────────────────────────────────────────────────

    def _look_at_indexes(self, lists: Iterable[str], batches: Iterable[str], slots: Iterable[str]) -> None:
        rows = [f"batch:{batch}:{part}" for batch in sorted(batches) for part in _ROWS]
        for index in ("watch", "inbox", *sorted(lists), *rows):
            entries = self._client.zscan_iter(self._keys.prefix + index, count=CHUNK)
            self._look_at_index(index, (str(run_id) for run_id, _ in entries))
        sets = [f"batch:{batch}:{part}" for batch in sorted(batches) for part in ("open", "delayed")]
        for index in (*sets, *sorted(slots), "flying"):
            members = self._client.sscan_iter(self._keys.prefix + index, count=CHUNK)
            self._look_at_index(index, map(str, members))

    def _look_at_index(self, index: str, members: Iterable[str]) -> None:
        for some in chunks(members, CHUNK):
            self._look_at_members(index, some)

    def _look_at_members(self, index: str, members: Sequence[str]) -> None:
        repaired = bool(self._repair)
        match self._scripts.call("index_check", index, self._repair, *members):
            case ["OK", unknown, *strays]:
                if unknown == 1:
                    self._checkup.add("unknown_list", f"list {index}", repaired=repaired)
                for run_id in strays:
                    subject = f"tenant {run_id}" if index == "flying" else f"run {run_id}"
                    self._checkup.add("stray", subject, f"`{index}`", repaired=repaired)
            case reply:
                raise unexpected("index_check", reply)

    # ── batches ─────────────────────────────────────────────────────────────────────────────────

    def _look_at_batch(self, name: str) -> None:
        match self._scripts.call("batch_check", name, self._repair):
            case ["GONE"]:
                return
            case ["OK", list(found)]:
                self._found(f"batch {name}", found)
            case reply:
                raise unexpected("batch_check", reply)
        self._checkup.batches += 1
        says, right = self._settled(name)
        if right is None:
            self._checkup.uncounted.append(name)
            return
        repaired = bool(right and self._repair) and self._recount(name, says, right)
        for counter, count in right.items():
            detail = f"`{counter}` is {says.get(counter, '0')}, and by its runs {count}"
            self._checkup.add("counter", f"batch {name}", detail, repaired=repaired)

    def _settled(self, name: str) -> tuple[dict[str, str], dict[str, int] | None]:
        """What a batch says, and its wrong counters with what is right, as two counts in a row have it.

        None in their place: it went on changing.
        """
        before: tuple[dict[str, str], dict[str, int] | None] = ({}, None)
        for _ in range(RECOUNTS):
            counted = self._count(name)
            if counted[1] == {} or (counted[1] is not None and counted == before):
                return counted
            before = counted
        return {}, None

    def _count(self, name: str) -> tuple[dict[str, str], dict[str, int] | None]:
        """One count; None for the counters when the batch changed meanwhile."""
        fields: dict[str, str] | None = None
        counts: Counter[str] = Counter()
        descendants = missing = 0
        for run_ids in self._list.runs(name):
            pipeline = self._client.pipeline(transaction=True)
            pipeline.hgetall(self._keys.batch(name))
            for part in _ROWS:
                pipeline.zmscore(self._keys.batch(name, part), run_ids)
            for run_id in run_ids:
                pipeline.hmget(self._keys.run(run_id), ["state", "stop_reason", "descendants", "counted"])
            says, *replies = pipeline.execute()
            fields = says if fields is None else fields
            if says != fields:
                return {}, None
            rows = zip(*replies[: len(_ROWS)], strict=True)
            for (state, reason, below, counted), scores in zip(replies[len(_ROWS) :], rows, strict=True):
                descendants += int(below or 0)
                listed = [part for part, score in zip(_ROWS, scores, strict=True) if score is not None]
                if state is None and listed:  # a row: it waits, or it has ended as none
                    dropped = listed[0].partition(":")[2]
                    counts[f"stop:{dropped}"] += dropped != ""
                    continue
                counts[f"stop:{reason}"] += state == "ended" and reason is not None
                for metric, amount in _COUNTED.findall(counted or ""):
                    counts[f"m:{metric}"] += int(amount)
                missing += state is None or (state == "ended" and reason is None)
        return fields or {}, _wrong(fields or {}, +counts, descendants, missing=missing)

    def _recount(self, name: str, says: dict[str, str], right: dict[str, int]) -> bool:
        """Correct these counters; answers whether the batch still said the same."""
        was = [part for item in says.items() for part in item]
        to_be = [str(part) for item in right.items() for part in item]
        match self._scripts.call("batch_recount", name, len(was), *was, len(to_be), *to_be):
            case ["OK"]:
                return True
            case ["CHANGED"]:
                return False
            case reply:
                raise unexpected("batch_recount", reply)


def _wrong(says: dict[str, str], counts: Counter[str], descendants: int, *, missing: int) -> dict[str, int]:
    """The counters that a batch's runs do not bear out, and what is right. Expired runs are still counted."""
    wrong = {}
    kept = {name for name in says if name.startswith(("stop:", "m:"))}
    for name in sorted({*counts, *kept} - {_SQUARES}):
        counter = int(says.get(name, 0))
        if counter < counts[name] or (counter > counts[name] and not missing):
            wrong[name] = counts[name]
    if int(says.get("descendants", 0)) != descendants:
        wrong["descendants"] = descendants
    return wrong
