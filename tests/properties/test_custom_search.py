"""A custom search method gives the same trials and lengths under faults.

Its process crashes, answers are lost, requests are doubled, and the server restarts.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from detcloud.shared.http import Unreachable
from tests.unit.searcher.search_harness import (
    Crash,
    Generations,
    SearchHarness,
    Steps,
    expected_lengths,
)

FIRST, CHILDREN = 2, 1
# A run without faults takes some 110 steps and 40 requests.
STEPS = st.frozensets(st.integers(1, 150), max_size=5)
REQUESTS = st.frozensets(st.integers(1, 60), max_size=3)


class Faults(NamedTuple):
    """The faults of a run.

    `crashes`: the last steps of the runner's processes. `restarts`: the requests before which the
    server restarts. `lost` and `doubled`: requests with a lost answer, and repeated requests.
    """

    crashes: frozenset[int] = frozenset()
    restarts: frozenset[int] = frozenset()
    lost: frozenset[int] = frozenset()
    doubled: frozenset[int] = frozenset()


FAULTS = st.builds(Faults, STEPS, REQUESTS, REQUESTS, REQUESTS)


def outcome(root: Path, faults: Faults) -> tuple[dict[float, list[int]], Steps]:
    """Run the search; return the outcome and the number of steps."""
    harness = SearchHarness(root)
    harness.steps = Steps(faults.crashes)
    harness.lost, harness.doubled = faults.lost, faults.doubled

    def restart_server(method: str, path: str) -> None:
        if harness.requests in faults.restarts:
            harness.restart()
        if "wait_seconds=20" in path:
            harness.train()

    for _ in range(len(faults.crashes) + len(faults.lost) + 1):
        try:
            harness.run(Generations(FIRST, CHILDREN), before=restart_server)
            break
        except (Crash, Unreachable):
            continue
    experiments = harness.get("/experiments")["items"]
    assert [(one["id"], one["state"]) for one in experiments] == [(1, "COMPLETED")]
    return harness.lengths(), harness.steps


@settings(deadline=None, derandomize=True, max_examples=8)
@given(FAULTS)
def test_faults_do_not_change_a_custom_search(faults: Faults) -> None:
    with tempfile.TemporaryDirectory() as root:
        found, _ = outcome(Path(root), faults)
    assert found == expected_lengths(FIRST, CHILDREN)
