"""One process of many that ask for money at the same instant; started by tests, given what it needs as JSON.

It prints `ready`, waits for a line on stdin (which all get at once), and prints a JSON list: for each of its
runs whether the money was granted. Then it waits to be ended, with what it was granted still reserved.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from agentq.core.records import Granted, Size
from agentq.store import connect


def main(url: str, namespace: str, runs: list[str], usd: int) -> None:
    """Claim each run in a thread of its own and reserve one call for it, all at once."""
    store = connect(url, namespace)
    claims = [store.runs.claim(run_id, None, 60_000) for run_id in runs]
    leases = [claim.lease for claim in claims if claim is not None]
    together = Barrier(len(leases))

    def ask(index: int) -> bool:
        together.wait()
        return isinstance(store.ledger.reserve(leases[index], 1, [Size(0, usd, 0)], policy="deny"), Granted)

    say("ready")
    sys.stdin.readline()
    with ThreadPoolExecutor(len(leases)) as pool:
        say(json.dumps(list(pool.map(ask, range(len(leases))))))
    sys.stdin.readline()


def say(line: str) -> None:
    """One line to whoever has started this process."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
