"""An outbox too long for one commit is sent whatever happens after the commit that spilled it."""

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
def test_it_is_sent_though_nobody_asks_again(
    cluster: SteppedCluster, commit: int, when: CrashMoment
) -> None:
    """Commit 1 spills 120 messages, 2 and 3 send 90 and 30 of them; then the user goes away."""
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


def test_a_pool_that_starts_a_hundred_trials_at_once_tells_them_all(
    cluster: SteppedCluster,
) -> None:
    """A message, not a command, spills this one: 120 trials and the agent hear of it."""
    cluster.submit(TRIALS)
    agent = cluster.add_agent("a", TRIALS, hold)
    cluster.round()
    assert cluster.checker.outbox_commits
    assert len(agent.processes) == TRIALS
    assert {t.allocation.agents for t in cluster.checker.actor_states("trial")} == {("a",)}


def test_what_comes_later_waits_for_the_outbox(cluster: SteppedCluster) -> None:
    """Every trial hears PAUSED before it hears of the end."""
    cluster.submit(TRIALS)
    dying = CrashingTable(cluster.engine.table, 1, "after")
    with pytest.raises(Crash):
        Engine(dying, cluster.engine.clock, UNHURRIED).execute_command(EXPERIMENT, PauseRequested())
    cluster.engine.execute_command(EXPERIMENT, CancelRequested())
    cluster.run_to_rest()
    for trial in cluster.checker.actor_states("trial"):
        folded = cluster.checker.folded_messages(f"trial#{trial.trial_id}")
        told = [f["status"] for name, f in folded if name == "ExperimentStatusChanged"]
        assert told == ["PAUSED", "STOPPING_CANCELED"]


def test_the_ids_of_a_second_experiment_do_not_wait(cluster: SteppedCluster) -> None:
    """A spilled experiment holds up nobody else."""
    cluster.submit(TRIALS)
    dying = CrashingTable(cluster.engine.table, 1, "after")
    with pytest.raises(Crash):
        Engine(dying, cluster.engine.clock, UNHURRIED).execute_command(EXPERIMENT, PauseRequested())
    cluster.command("experiment#2", submission(2, 2))
    assert sum(t.experiment_id == 2 for t in cluster.checker.actor_states("trial")) == 2


def test_a_command_is_taken_while_the_outbox_of_another_is_sent(cluster: SteppedCluster) -> None:
    """However long the outbox is, the next command is one commit, and what it sends comes after."""
    cluster.submit(10 * TRIALS)
    for command in (PauseRequested(), ActivateRequested(), CancelRequested()):
        dying = CrashingTable(cluster.engine.table, 1, "after")
        with pytest.raises(Crash):
            Engine(dying, cluster.engine.clock, UNHURRIED).execute_command(EXPERIMENT, command)
    assert cluster.checker.actor_state(EXPERIMENT).status is Status.STOPPING_CANCELED
    cluster.run_to_rest()
    for trial in cluster.checker.actor_states("trial"):
        folded = cluster.checker.folded_messages(f"trial#{trial.trial_id}")
        told = [f["status"] for name, f in folded if name == "ExperimentStatusChanged"]
        assert told == ["PAUSED", "ACTIVE", "STOPPING_CANCELED"]
    assert not [key for key in cluster.checker.rows if key.sort.startswith("P#outbox/")]


def test_a_journal_is_replayed_over_commands_that_send_nothing_meanwhile(
    cluster: SteppedCluster,
) -> None:
    """Commits that send a spilled outbox have no entry, before and after such a command."""
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
