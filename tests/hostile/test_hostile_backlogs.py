"""Minutes of reports in a single call, as after an outage of the server.

No report is lost or counts twice, and no trial ends as a result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from control_plane.engine.mailbox import LETTERS
from control_plane.state.table import Unavailable, Write
from simulator.faults.table_faults import TableDecorator
from tests.unit.api.agent_side import CONFIG, Agent, metrics
from tests.unit.api.cluster import Cluster

ALLOCATION = "1.1"


class BreakingTable(TableDecorator):
    """A table that fails at each commit with a number that `every` divides; 0 never fails.

    The failure is a throttle before the commit, or with `after` an error after the commit.
    """

    def __init__(self, cluster: Cluster, every: int, *, after: bool) -> None:
        super().__init__(cluster.services.engine.table)
        self.every = every
        self.commits = 0
        self.faults = 0
        self._after = after

    def commit(self, writes: Sequence[Write]) -> None:
        self.commits += 1
        breaks = self.every and self.commits % self.every == 0
        self.faults += bool(breaks)
        if breaks and not self._after:
            raise Unavailable("throttled")
        super().commit(writes)
        if breaks:
            raise RuntimeError("a fault of the program")


def checkpoint_lines(count: int, note: str = "") -> list[dict[str, Any]]:
    """Return two lines for each of `count` checkpoints, with a validation in between."""
    lines: list[dict[str, Any]] = []
    for n in range(1, count + 1):
        uuid = f"{n:08x}-0000-4000-8000-000000000001"
        place = {"uuid": uuid, "steps_completed": n, "path": f"1/1/1/{uuid}"}
        content = {"manifest_sha256": "0" * 64, "size_bytes": 8, "files": 1}
        lines += [
            {"kind": "checkpoint_intent", **place},
            metrics(n, "validation", loss=1.0 / n),
            {"kind": "checkpoint", **place, **content, "metadata": {"note": note}},
        ]
    return lines


@pytest.fixture
def agent(cluster: Cluster) -> Agent:
    """Return an agent with two trials, the first reported as running."""
    assert cluster.create(CONFIG).status == 201
    agent = Agent(cluster)
    agent.take_work()
    agent.report(ALLOCATION, {"kind": "container", "state": "RUNNING"}, writer="agent")
    return agent


def checkpoint_count(cluster: Cluster) -> int:
    """Return the number of listed checkpoints of the trial."""
    count, cursor = 0, ""
    while cursor is not None:
        page = cluster.get(f"/trials/1/checkpoints?limit=500{cursor and f'&cursor={cursor}'}").json
        count, cursor = count + len(page["items"]), page["next_cursor"]
    return count


def check_trial(cluster: Cluster, checkpoints: int) -> None:
    """Check that the trial runs and that each checkpoint and validation counts once."""
    trial = cluster.get("/trials/1").json
    assert (trial["state"], trial["restarts"]) == ("ACTIVE", 0)
    assert trial["steps_completed"] == checkpoints
    assert checkpoint_count(cluster) == checkpoints
    listed = cluster.get("/trials/1/metrics?group=validation&limit=500").json["items"]
    assert [line["steps_completed"] for line in listed] == list(range(1, checkpoints + 1))
    table = cluster.services.engine.table
    assert not table.query("trial#1", LETTERS, f"{LETTERS}~").rows


@pytest.mark.parametrize(("count", "note_bytes"), [(49, 0), (400, 0), (60, 15_000)])
def test_backlog_of_checkpoints_in_a_call_ends_no_trial(
    cluster: Cluster, agent: Agent, count: int, note_bytes: int
) -> None:
    answer = agent.report(ALLOCATION, *checkpoint_lines(count, "x" * note_bytes))
    assert answer.status == 200
    assert answer.json["acked"][ALLOCATION]["0"] == agent.offsets[ALLOCATION, "0"]
    check_trial(cluster, count)


@pytest.mark.parametrize("after", [False, True], ids=["before the commit", "after it"])
@pytest.mark.parametrize("every", [1, 2, 5])
def test_repeated_call_records_the_reports_of_a_failed_call(
    cluster: Cluster, agent: Agent, every: int, after: bool
) -> None:
    count = 60
    engine = cluster.services.engine
    sound = engine.table
    table = engine.table = BreakingTable(cluster, every, after=after)
    reports = agent.entries(ALLOCATION, *checkpoint_lines(count))
    answers = [agent.sync(reports=reports)]
    while answers[-1].status != 200:
        assert len(answers) < 200
        # A table that fails at every commit is repaired after some attempts.
        table.every = table.every if len(answers) < 20 else 0
        answers.append(agent.sync(reports=reports))
    engine.table = sound
    # Faults of the trial's own commits, after the reports are committed, are only logged.
    assert table.faults > 0
    if every == 1:
        assert any(answer.status in (500, 503) for answer in answers)
    assert answers[-1].json["acked"][ALLOCATION]["0"] == reports[-1]["offset"]
    cluster.clock.ms += 60_000
    engine.advance_until_idle(["trial#1"])
    check_trial(cluster, count)
