"""Tests of a dead tick: idle machines end, trials finish, and no trial runs twice."""

from pathlib import Path

import pytest

from control_plane.actors.records import Status
from control_plane.agents.tick_age import TickAges
from tests.simulation.dead_tick import MACHINES, TRIALS, DeadTickCluster

# The tick counts as dead after 60 min, and 5 min of answers confirm it. The remaining 3 min are for
# a cached age, the next sync, and the end of the machine.
IDLE_END_MINUTES = 60 + 5 + 3
# The first trials end 130 to 230 min after the tick died.
TRIALS_END_MINUTES = 250


@pytest.fixture
def cluster(tmp_path: Path) -> DeadTickCluster:
    return DeadTickCluster(tmp_path)


def test_idle_machines_end_within_the_hour_and_a_margin(cluster: DeadTickCluster) -> None:
    cluster.start()
    cluster.run_until(60)
    assert len(cluster.machine_names()) == MACHINES
    busy = cluster.busy_machine_names()
    assert len(busy) == TRIALS
    cluster.run_until(IDLE_END_MINUTES)
    assert cluster.machine_names() == busy


def test_trials_finish_once_and_later_trials_wait_for_the_tick(cluster: DeadTickCluster) -> None:
    cluster.start()
    cluster.run_until(100)
    cluster.submit(trials=2, batch_seconds=60.0)
    cluster.run_until(TRIALS_END_MINUTES)
    assert cluster.machine_names() == set()
    first, later = cluster.trials()[:TRIALS], cluster.trials()[TRIALS:]
    assert {trial.status for trial in first} == {Status.COMPLETED}
    # The pool assigned the later trials to the slots that became free, and the agents refused.
    assert {trial.status for trial in later} == {Status.ACTIVE}
    assert cluster.starts == {"1.1": 1, "2.1": 1}
    cluster.is_tick_dead = False
    cluster.run_until(TRIALS_END_MINUTES + 200)
    assert {trial.status for trial in cluster.trials()} == {Status.COMPLETED}
    assert [trial.restarts for trial in cluster.trials()] == [0, 0, 0, 0]
    # The machines of the first runs of the later trials had ended. Each trial started once.
    assert cluster.starts == {"1.1": 1, "2.1": 1, "3.2": 1, "4.2": 1}
    assert len(cluster.machine_names()) == MACHINES


def test_idle_machines_accept_trials_in_the_first_hour(cluster: DeadTickCluster) -> None:
    cluster.start()
    cluster.run_until(30)
    cluster.submit(trials=2, batch_seconds=60.0)
    cluster.run_until(TRIALS_END_MINUTES)
    assert {trial.status for trial in cluster.trials()} == {Status.COMPLETED}
    assert cluster.starts == {"1.1": 1, "2.1": 1, "3.1": 1, "4.1": 1}
    assert cluster.machine_names() == set()


def test_tick_that_returns_within_the_hour_ends_no_machine(cluster: DeadTickCluster) -> None:
    cluster.start()
    cluster.run_until(55)
    machines = cluster.machine_names()
    cluster.is_tick_dead = False
    cluster.run_until(125)
    assert cluster.machine_names() == machines
    assert len(machines) == MACHINES


def test_machines_whose_trials_outlast_the_dead_tick_continue(cluster: DeadTickCluster) -> None:
    cluster.start()
    cluster.run_until(100)
    busy = cluster.busy_machine_names()
    cluster.is_tick_dead = False
    cluster.run_until(110)
    assert busy < cluster.machine_names()
    assert len(cluster.machine_names()) == MACHINES
    cluster.run_until(TRIALS_END_MINUTES)
    assert {trial.status for trial in cluster.trials()} == {Status.COMPLETED}
    assert cluster.starts == {"1.1": 1, "2.1": 1}
    assert [trial.losses + trial.restarts for trial in cluster.trials()] == [0, 0]


def test_agents_of_an_older_release_ignore_the_dead_tick(cluster: DeadTickCluster) -> None:
    cluster.machines.have_older_agents = True
    cluster.start()
    cluster.run_until(TRIALS_END_MINUTES)
    assert len(cluster.machine_names()) == MACHINES
    assert {trial.status for trial in cluster.trials()} == {Status.COMPLETED}


def test_agents_do_nothing_if_an_older_server_sends_no_age(
    cluster: DeadTickCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TickAges, "age_ms", lambda *_: None)
    cluster.start()
    cluster.run_until(TRIALS_END_MINUTES)
    assert len(cluster.machine_names()) == MACHINES
    assert {trial.status for trial in cluster.trials()} == {Status.COMPLETED}


def test_agent_restarted_under_a_dead_tick_confirms_the_age_again(
    cluster: DeadTickCluster,
) -> None:
    cluster.start()
    cluster.run_until(64)
    busy = cluster.busy_machine_names()
    for agent in cluster.machines.present_agents():
        agent.start()
    cluster.run_until(66)
    assert len(cluster.machine_names()) == MACHINES
    cluster.run_until(64 + 5 + 3)
    assert cluster.machine_names() == busy
