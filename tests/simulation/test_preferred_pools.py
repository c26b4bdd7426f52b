"""Tests of a job with several preferred pools: trials run once, in the first pool with capacity."""

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
    """Submit an experiment that prefers the first pool; return the time in milliseconds."""
    pools = PoolPreferences((FIRST, SECOND), PATIENCE_MS)
    message: ExperimentSubmitted = replace(submission(number, trials), pools=pools)
    cluster.command(f"experiment#{number}", message)
    return cluster.now_ms


def count(cluster: SteppedCluster, address: str, name: str) -> int:
    return [folded for folded, _ in cluster.checker.folded_messages(address)].count(name)


def assert_ran_once_in_the_second(cluster: SteppedCluster, trials: int = 2) -> None:
    state = cluster.checker.actor_state(EXPERIMENT)
    assert (state.status, state.pool) == (Status.COMPLETED, SECOND)
    assert (state.trials_completed, state.pool_moves.count) == (trials, 1)
    for number in range(1, trials + 1):
        assert count(cluster, f"trial#{number}", "SlotsAssigned") == 1


def test_job_moves_to_the_second_pool_if_the_first_gets_no_instance(
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
    # The job moved before the patience ended, because the pool can get no instance.
    moves = cluster.checker.actor_state(EXPERIMENT).pool_moves
    assert moves.moved_ms - submitted_ms < PATIENCE_MS
    assert moves.reason.startswith(f"pool {FIRST} gets no instances: no offering has capacity")
    assert cluster.cloud.machines == {}


def test_job_leaves_a_busy_first_pool_after_the_patience(
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
    # The job with the slot of the first pool stays in that pool.
    assert len(first.processes) == 1
    assert state("experiment#7").pool == FIRST


def test_job_without_capacity_moves_once_per_patience(
    cluster: SteppedCluster,
) -> None:
    add_pools(cluster, PoolSettings())
    submitted_ms = submit(cluster, trials=1)
    cluster.round_ms = PATIENCE_MS // 20
    state = cluster.checker.actor_state
    for _ in range(200):
        cluster.round()
    # Two moves at once, then one move per patience: 200 / 20 = 10 moves.
    assert 2 + 8 <= state(EXPERIMENT).pool_moves.count <= 2 + 10
    cluster.add_agent("b", 1, train_at_once, pool=SECOND)
    cluster.until(lambda: state(EXPERIMENT).status.is_final, "done")
    ran_ms = cluster.now_ms - submitted_ms - 200 * cluster.round_ms
    assert ran_ms <= 2 * PATIENCE_MS
    assert state(EXPERIMENT).status is Status.COMPLETED
    assert count(cluster, "trial#1", "SlotsAssigned") == 1
