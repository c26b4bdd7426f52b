"""A search method comes to the same trials and lengths whatever ends its process, whatever answer
is lost or request is doubled, and whenever the server restarts.
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
    crashing_disk,
    expected_lengths,
)

FIRST, CHILDREN = 2, 1
# A run without faults takes some 110 steps and 40 requests.
STEPS = st.frozensets(st.integers(1, 150), max_size=5)
REQUESTS = st.frozensets(st.integers(1, 60), max_size=3)


class Faults(NamedTuple):
    """Which steps of the runner's processes are their last, and before which of all requests the
    server restarts. Of those in `lost` the answer does not arrive; those in `doubled` arrive twice.
    """

    crashes: frozenset[int] = frozenset()
    restarts: frozenset[int] = frozenset()
    lost: frozenset[int] = frozenset()
    doubled: frozenset[int] = frozenset()


FAULTS = st.builds(Faults, STEPS, REQUESTS, REQUESTS, REQUESTS)


def outcome(root: Path, faults: Faults) -> tuple[dict[float, list[int]], Steps]:
    """Run the search; return its outcome and how many steps it took."""
    harness = SearchHarness(root)
    harness.steps = Steps(faults.crashes)
    harness.lost, harness.doubled = faults.lost, faults.doubled

    def restart_server(method: str, path: str) -> None:
        if harness.requests in faults.restarts:
            harness.restart()
        if "wait_seconds=20" in path:
            harness.train()

    with crashing_disk(harness.steps):
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
def test_faults_change_nothing(faults: Faults) -> None:
    with tempfile.TemporaryDirectory() as root:
        found, _ = outcome(Path(root), faults)
    assert found == expected_lengths(FIRST, CHILDREN)
