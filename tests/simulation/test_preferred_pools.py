"""A job that prefers several pools in a whole cluster: it runs where capacity comes first, once."""

import json
from dataclasses import asdict, replace

from control_plane.actors.messages.experiment import ExperimentSubmitted
from control_plane.actors.messages.pool import PoolConfigured, PoolSettings
from control_plane.actors.pool_moves import PoolPreferences
from control_plane.actors.records import Status
from control_plane.fleet.records import Market, Offering
from simulator.stepped.small_search import POOL, submission
from simulator.stepped.stepped_cluster import SteppedCluster
from tests.simulation.scenarios import hold
from tests.simulation.scripts import train_at_once

FIRST, SECOND = POOL, "second"
PATIENCE_MS = 600_000
EXPERIMENT = "experiment#1"
EMPTY = Offering("small/a/on_demand", "small", "a", Market.ON_DEMAND, 1, 1.0)


def add_pools(cluster: SteppedCluster, first: PoolSettings) -> None:
    cluster.command(f"pool#{FIRST}", PoolConfigured(FIRST, first))
    cluster.command(f"pool#{SECOND}", PoolConfigured(SECOND))


def submit(cluster: SteppedCluster, number: int = 1, trials: int = 2) -> int:
    """Submit an experiment that prefers the first pool; the time of that."""
    pools = PoolPreferences((FIRST, SECOND), PATIENCE_MS)
    message: ExperimentSubmitted = replace(submission(number, trials), pools=pools)
    cluster.command(f"experiment#{number}", message)
    return cluster.now_ms


def count(cluster: SteppedCluster, address: str, name: str) -> int:
    return [heard for heard, _ in cluster.checker.folded_messages(address)].count(name)


def assert_ran_once_in_the_second(cluster: SteppedCluster, trials: int = 2) -> None:
    state = cluster.checker.actor_state(EXPERIMENT)
    assert (state.status, state.pool) == (Status.COMPLETED, SECOND)
    assert (state.trials_completed, state.pool_moves.count) == (trials, 1)
    for number in range(1, trials + 1):
        assert count(cluster, f"trial#{number}", "SlotsAssigned") == 1


def test_a_job_whose_first_pool_gets_no_instance_runs_in_the_second(
    cluster: SteppedCluster,
) -> None:
    cluster.cloud.catalog, cluster.cloud.capacity = (EMPTY,), {EMPTY.name: 0}
    provider = {"type": "fake", "max_instances": 2, "offerings": [asdict(EMPTY)]}
    add_pools(cluster, PoolSettings(provider=json.dumps(provider)))
    cluster.add_agent("b", 1, train_at_once, pool=SECOND)
    submitted_ms = submit(cluster)

    def reconcile() -> bool:
        cluster.host.provisioner.reconciler.reconcile_pools()
        return bool(cluster.checker.actor_state(EXPERIMENT).status.is_final)

    cluster.until(reconcile, "done")
    assert_ran_once_in_the_second(cluster)
    # It did not wait for the patience, since nothing could come.
    moves = cluster.checker.actor_state(EXPERIMENT).pool_moves
    assert moves.moved_ms - submitted_ms < PATIENCE_MS
    assert moves.reason.startswith(f"pool {FIRST} gets no instances: no offering has capacity")
    assert cluster.cloud.machines == {}


def test_a_job_whose_first_pool_is_busy_runs_in_the_second_after_its_patience(
    cluster: SteppedCluster,
) -> None:
    add_pools(cluster, PoolSettings())
    first = cluster.add_agent("a", 1, hold)
    cluster.command("experiment#7", submission(7, 1))
    cluster.until(lambda: len(first.processes) == 1, "busy")
    cluster.add_agent("b", 1, train_at_once, pool=SECOND)
    submitted_ms = submit(cluster)
    cluster.round_ms = PATIENCE_MS // 20
    state = cluster.checker.actor_state
    cluster.until(lambda: state(EXPERIMENT).status.is_final, "done")
    trial = cluster.checker.folded_messages(EXPERIMENT)
    assert [name for name, _ in trial].count("WaitEnded") == 1
    moved_ms = state(EXPERIMENT).pool_moves.moved_ms
    assert 0 <= moved_ms - submitted_ms - PATIENCE_MS < 3 * cluster.round_ms
    assert state(EXPERIMENT).pool == SECOND
    # What has the slot of the first pool is not concerned.
    assert len(first.processes) == 1
    assert state("experiment#7").pool == FIRST


def test_a_job_that_no_pool_has_anything_for_waits_a_patience_in_each(
    cluster: SteppedCluster,
) -> None:
    add_pools(cluster, PoolSettings())
    submitted_ms = submit(cluster, trials=1)
    cluster.round_ms = PATIENCE_MS // 20
    state = cluster.checker.actor_state
    for _ in range(200):
        cluster.round()
    # Two moves at once, then one in each patience: 200 / 20 = 10 of them.
    assert 2 + 8 <= state(EXPERIMENT).pool_moves.count <= 2 + 10
    cluster.add_agent("b", 1, train_at_once, pool=SECOND)
    cluster.until(lambda: state(EXPERIMENT).status.is_final, "done")
    ran_ms = cluster.now_ms - submitted_ms - 200 * cluster.round_ms
    assert ran_ms <= 2 * PATIENCE_MS
    assert state(EXPERIMENT).status is Status.COMPLETED
    assert count(cluster, "trial#1", "SlotsAssigned") == 1
