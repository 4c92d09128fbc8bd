"""All mutants."""

from __future__ import annotations

from tests.mutants.chaos import CHAOS
from tests.mutants.feeder import FEEDER_MUTANTS
from tests.mutants.governor import GOVERNOR
from tests.mutants.ledger import LEDGER
from tests.mutants.runs import RUNS

MUTANTS = (*LEDGER, *RUNS, *CHAOS, *GOVERNOR, *FEEDER_MUTANTS)
