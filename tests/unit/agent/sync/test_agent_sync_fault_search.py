"""A report line that the cluster refuses is found by bisection, and only this line is abandoned."""

from __future__ import annotations

import pytest

from detcloud.agent.allocation.trial_reports import ReportLine, parse_line
from detcloud.agent.sync.fault_search import (
    FAILURES_MAX,
    PROOFS_MAX,
    FaultSearch,
    RefusedPart,
)
from detcloud.agent.sync.payload import pack_payload
from tests.unit.agent.sync.test_agent_sync_payload import UnsentAllocation


class Cluster:
    """Cluster that fails a call by the status in `by_offset` of the call's first faulty line."""

    def __init__(self, search: FaultSearch, by_offset: dict[int, int], count: int = 100) -> None:
        self.search = search
        self.by_offset = by_offset
        self.is_broken = False
        self.taken: list[int] = []
        self.given_up: list[int] = []
        self.call_count = 0
        raw = b'{"kind":"metrics"}'
        self.source = UnsentAllocation(
            "4.1", {"0": [parse_line(raw, offset) for offset in range(1, count + 1)]}
        )

    @property
    def lines(self) -> list[ReportLine]:
        return self.source.by_writer["0"]

    def call(self) -> None:
        """Make a single call, like the session; record taken and abandoned lines."""
        self.call_count += 1
        payload = pack_payload([self.source], self.search.entries_max)
        last = payload.sent.get(("4.1", "0"), 0)
        offsets = [line.offset for line in self.lines if line.offset <= last]
        fault = next((self.by_offset[n] for n in offsets if n in self.by_offset), 200)
        status = 500 if self.is_broken else fault
        part: RefusedPart | None = None
        if status == 500:
            self.search.record_failure(payload)
        elif status == 422:
            part = self.search.record_refusal(payload)
        else:
            self.taken += offsets
            self.source.by_writer["0"] = [line for line in self.lines if line.offset > last]
            part = self.search.record_success(payload)
        if part is not None:
            self.given_up.append(part.offset)
            self.by_offset.pop(part.offset)


@pytest.mark.parametrize("status", [422, 500])
@pytest.mark.parametrize("bad", [[1], [100], [50], [7, 8, 93], list(range(1, 101, 9))])
def test_only_refused_lines_are_abandoned(status: int, bad: list[int]) -> None:
    cluster = Cluster(FaultSearch(), dict.fromkeys(bad, status))
    while cluster.lines:
        cluster.call()
    # An abandoned line is sent as a warning, which the cluster takes.
    assert cluster.taken == list(range(1, 101))
    assert cluster.given_up == bad
    # Bisecting 100 lines takes 7 steps of three calls: the lines before the half, the half, and a
    # call without lines. The proofs come last.
    assert cluster.call_count <= len(bad) * (3 * 7 + FAILURES_MAX + 2 * PROOFS_MAX) + 5


def test_no_line_is_abandoned_while_all_calls_fail() -> None:
    cluster = Cluster(FaultSearch(), {})
    cluster.is_broken = True
    for _ in range(100):
        cluster.call()
    cluster.is_broken = False
    while cluster.lines:
        cluster.call()
    assert (cluster.given_up, cluster.taken) == ([], list(range(1, 101)))


@pytest.mark.parametrize("count", [1, 2, 100])
def test_no_line_is_abandoned_after_passing_failures(count: int) -> None:
    cluster = Cluster(FaultSearch(), {}, count)
    for turn in range(200):
        # Broken for a while at any moment of the search.
        cluster.is_broken = turn % 7 < 4
        cluster.call()
        if not cluster.lines:
            break
    assert (cluster.given_up, cluster.taken) == ([], list(range(1, count + 1)))
