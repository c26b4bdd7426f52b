"""A server with a jumping clock while agents work.

No healthy agent is lost, vanished agents are still detected, and later messages are still ordered
later.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from control_plane.agents.leases import LEASE_MS, mark_lost_agents, read_leases
from control_plane.engine import due_rows
from control_plane.engine.mailbox import MAIL, read_mail
from control_plane.state.table import Put, Row, StateTable, Write
from simulator.faults.table_faults import TableDecorator
from simulator.machines.report_stream import Line
from simulator.stepped.scripted_agent import Run, ScriptedAgent
from simulator.stepped.small_search import POOL
from simulator.stepped.stepped_cluster import SteppedCluster
from tests.simulation.scripts import train_at_once
from tests.thinning import every

MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS
# An embedded server looks at the leases each 5 s.
ROUND_MS = 5_000
ROUNDS = 12

JUMPS = {
    "a day ahead": (DAY_MS,),
    "a day back": (-DAY_MS,),
    "two minutes ahead": (2 * MINUTE_MS,),
    "two minutes back": (-2 * MINUTE_MS,),
    "a lease ahead": (LEASE_MS + 1,),
    "a lease back": (-LEASE_MS - 1,),
    "a second back": (-1_000,),
    "there and back": (DAY_MS, -DAY_MS),
    "back and forth": (-DAY_MS, DAY_MS),
    "ahead twice": (MINUTE_MS, MINUTE_MS),
    "the year 2106": (80 * 365 * DAY_MS,),
}
each_jump = pytest.mark.parametrize("jumps", JUMPS.values(), ids=JUMPS)


class MailClocks(TableDecorator):
    """A table that records the clock of each mail row, by sender."""

    def __init__(self, table: StateTable) -> None:
        super().__init__(table)
        self.clocks: dict[tuple[str, str], list[int]] = {}

    def commit(self, writes: Sequence[Write]) -> None:
        """Commit, and record the clocks of written mail."""
        self.table.commit(writes)
        for write in writes:
            if isinstance(write, Put) and write.key.sort.startswith(MAIL):
                mail = read_mail(Row(write.key, write.revision, write.body))
                self.clocks.setdefault((mail.sender, write.key.partition), []).append(mail.clock)


class TickingCluster(SteppedCluster):
    """A cluster with the tick of an embedded server."""

    def tick(self) -> None:
        pass_ms = self.round_ms
        mark_lost_agents(
            self.engine.table, POOL, self.now_ms, self.engine.advance_until_idle, pass_ms
        )
        due_rows.process_due_rows(self.engine)


def train_slowly(run: Run) -> list[Line]:
    """Train for some rounds, with a report each time."""
    if run.rounds < ROUNDS and not run.killed and not run.directives["preempt"]:
        return [{"kind": "progress", "value": run.rounds / ROUNDS}]
    return train_at_once(run)


@pytest.fixture
def mail_clocks() -> list[MailClocks]:
    return []


@pytest.fixture
def cluster(tmp_path: Path, mail_clocks: list[MailClocks]) -> Iterator[SteppedCluster]:
    def note_clocks(table: StateTable, process: int) -> StateTable:
        mail_clocks.append(MailClocks(table))
        return mail_clocks[-1]

    made = TickingCluster(tmp_path / "table.db", faults=note_clocks, round_ms=ROUND_MS)
    made.add_pool()
    yield made
    made.close()


def start_trials(cluster: SteppedCluster, agents: int) -> None:
    """Start trials on each agent, and run lease passes until the passes are regular."""
    for n in range(agents):
        cluster.add_agent(f"node-{n}", 1, train_slowly)
    cluster.submit(2 * agents)
    cluster.until(lambda: all(agent.processes for agent in cluster.agents), "all at work")
    for _ in range(3):
        cluster.round()


def jump(cluster: SteppedCluster, by_ms: int, agent: ScriptedAgent | None = None) -> None:
    """Let the clock jump, and run passes while calls are held for 20 s.

    The `agent`, if given, syncs right after the jump.
    """
    cluster.now_ms += by_ms
    if agent is not None:
        agent.sync()
    for _ in range(4):
        cluster.tick()
        cluster.now_ms += ROUND_MS
    for _ in range(3):
        cluster.round()


def lost_agents(cluster: SteppedCluster) -> list[str]:
    leases = read_leases(cluster.engine.table, POOL)
    return [agent for agent, lease in leases.items() if lease.lost or lease.epoch > 1]


@each_jump
@pytest.mark.parametrize("agents", every(3, [2, 1, 5]))
@pytest.mark.parametrize("one_is_first", [False, True])
def test_clock_jump_ends_no_healthy_work(
    cluster: SteppedCluster, jumps: tuple[int, ...], agents: int, one_is_first: bool
) -> None:
    start_trials(cluster, agents)
    for by_ms in jumps:
        jump(cluster, by_ms, cluster.agents[0] if one_is_first else None)
    cluster.run_to_rest()
    assert lost_agents(cluster) == []
    assert [state.restarts for state in cluster.checker.actor_states("trial")] == [0] * (2 * agents)
    assert all(state.epoch == 1 for state in cluster.checker.actor_states("trial"))


@each_jump
def test_agent_that_dies_at_a_clock_jump_is_still_detected(
    cluster: SteppedCluster, jumps: tuple[int, ...]
) -> None:
    start_trials(cluster, 3)
    cluster.silent.add("node-1")
    for by_ms in jumps:
        jump(cluster, by_ms)
    # The lease, and a pause of a lease's length for each jump.
    rounds = (1 + len(jumps)) * LEASE_MS // ROUND_MS + 2
    for _ in range(rounds):
        cluster.round()
    assert lost_agents(cluster) == ["node-1"]
    cluster.until(
        lambda: all(state.status.is_final for state in cluster.checker.actor_states("experiment")),
        "ended",
    )


@each_jump
def test_later_messages_are_ordered_later_despite_clock_jumps(
    cluster: SteppedCluster, mail_clocks: list[MailClocks], jumps: tuple[int, ...]
) -> None:
    start_trials(cluster, 2)
    for by_ms in jumps:
        jump(cluster, by_ms)
    cluster.run_to_rest()
    found = [clocks for noted in mail_clocks for clocks in noted.clocks.values() if len(clocks) > 1]
    assert len(found) > 5
    for clocks in found:
        assert all(one < other for one, other in pairwise(clocks))


def test_silent_agent_without_clock_jumps_is_lost_after_the_lease(
    cluster: SteppedCluster,
) -> None:
    start_trials(cluster, 4)
    cluster.silent.add("node-3")
    # 30 s of lease and a pass.
    for _ in range(LEASE_MS // ROUND_MS + 2):
        cluster.round()
    assert lost_agents(cluster) == ["node-3"]
