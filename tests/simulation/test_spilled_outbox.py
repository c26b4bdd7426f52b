"""Tests of outboxes that are too long for a commit: the ticks send every spilled message."""

import pytest

from control_plane.actors.messages.experiment import (
    ActivateRequested,
    CancelRequested,
    PauseRequested,
)
from control_plane.actors.records import Status
from control_plane.engine.engine import Engine
from control_plane.engine.replay import replay_actor
from simulator.faults.table_faults import Crash, CrashingTable, CrashMoment
from simulator.stepped.small_search import POOL, submission
from simulator.stepped.stepped_cluster import SteppedCluster
from tests.engine_timing import UNHURRIED
from tests.simulation.scenarios import hold

EXPERIMENT = "experiment#1"
TRIALS = 120


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("commit", [1, 2, 3])
def test_spilled_outbox_is_sent_by_ticks_after_a_crash(
    cluster: SteppedCluster, commit: int, when: CrashMoment
) -> None:
    """Commit 1 spills 120 messages, commits 2 and 3 send 90 and 30; no user retries the pause."""
    cluster.submit(TRIALS)
    dying = CrashingTable(cluster.engine.table, commit, when)
    with pytest.raises(Crash):
        Engine(dying, cluster.engine.clock, UNHURRIED).execute_command(EXPERIMENT, PauseRequested())
    for _ in range(20):
        cluster.now_ms += 1_000
        cluster.tick()
    lost = (commit, when) == (1, "before")
    expected = Status.ACTIVE if lost else Status.PAUSED
    assert {t.experiment_status for t in cluster.checker.actor_states("trial")} == {expected}
    assert cluster.checker.actor_state(f"pool#{POOL}").queued == (TRIALS if lost else 0)
    assert not [key for key in cluster.checker.rows if key.sort.startswith("P#outbox/")]
    assert cluster.checker.pending_mail() == []


def test_pool_spills_and_sends_messages_to_120_trials(
    cluster: SteppedCluster,
) -> None:
    """A message instead of a command spills the outbox to 120 trials and the agent."""
    cluster.submit(TRIALS)
    agent = cluster.add_agent("a", TRIALS, hold)
    cluster.round()
    assert cluster.checker.outbox_commits
    assert len(agent.processes) == TRIALS
    assert {t.allocation.agents for t in cluster.checker.actor_states("trial")} == {("a",)}


def test_later_command_waits_for_the_spilled_outbox(cluster: SteppedCluster) -> None:
    """Every trial receives PAUSED before the end of the experiment."""
    cluster.submit(TRIALS)
    dying = CrashingTable(cluster.engine.table, 1, "after")
    with pytest.raises(Crash):
        Engine(dying, cluster.engine.clock, UNHURRIED).execute_command(EXPERIMENT, PauseRequested())
    cluster.engine.execute_command(EXPERIMENT, CancelRequested())
    cluster.run_to_rest()
    for trial in cluster.checker.actor_states("trial"):
        folded = cluster.checker.folded_messages(f"trial#{trial.trial_id}")
        statuses = [f["status"] for name, f in folded if name == "ExperimentStatusChanged"]
        assert statuses == ["PAUSED", "STOPPING_CANCELED"]


def test_spilled_outbox_does_not_delay_a_second_experiment(cluster: SteppedCluster) -> None:
    cluster.submit(TRIALS)
    dying = CrashingTable(cluster.engine.table, 1, "after")
    with pytest.raises(Crash):
        Engine(dying, cluster.engine.clock, UNHURRIED).execute_command(EXPERIMENT, PauseRequested())
    cluster.command("experiment#2", submission(2, 2))
    assert sum(t.experiment_id == 2 for t in cluster.checker.actor_states("trial")) == 2


def test_commands_succeed_while_earlier_outboxes_wait(cluster: SteppedCluster) -> None:
    """A command is a single commit; the messages of the command follow the earlier outboxes."""
    cluster.submit(2 * TRIALS)
    for command in (PauseRequested(), ActivateRequested(), CancelRequested()):
        dying = CrashingTable(cluster.engine.table, 1, "after")
        with pytest.raises(Crash):
            Engine(dying, cluster.engine.clock, UNHURRIED).execute_command(EXPERIMENT, command)
    assert cluster.checker.actor_state(EXPERIMENT).status is Status.STOPPING_CANCELED
    cluster.run_to_rest()
    for trial in cluster.checker.actor_states("trial"):
        folded = cluster.checker.folded_messages(f"trial#{trial.trial_id}")
        statuses = [f["status"] for name, f in folded if name == "ExperimentStatusChanged"]
        assert statuses == ["PAUSED", "ACTIVE", "STOPPING_CANCELED"]
    assert not [key for key in cluster.checker.rows if key.sort.startswith("P#outbox/")]


@pytest.mark.nightly
def test_journal_replays_across_silent_commands_during_a_spill(
    cluster: SteppedCluster,
) -> None:
    """Commits that send a spilled outbox add no journal entry, before and after a command."""
    cluster.submit(3 * TRIALS)
    dying = CrashingTable(cluster.engine.table, 1, "after")
    with pytest.raises(Crash):
        Engine(dying, cluster.engine.clock, UNHURRIED).execute_command(EXPERIMENT, PauseRequested())
    dying = CrashingTable(cluster.engine.table, 2, "after")
    with pytest.raises(Crash):
        Engine(dying, cluster.engine.clock, UNHURRIED).execute_command(EXPERIMENT, PauseRequested())
    for _ in range(20):
        cluster.now_ms += 1_000
        cluster.tick()
    replayed = replay_actor(cluster.engine.table, EXPERIMENT)
    assert replayed.difference is None
    assert replayed.complete
