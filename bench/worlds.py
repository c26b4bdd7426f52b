"""Whole clusters in virtual time: invariants over seeds, speed, and a cluster with ten thousand
trials.
"""

import gc
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.figures import Row, Scale, at_least, at_most, progress, row_without_target
from control_plane.actors.messages.pool import PoolSettings
from simulator.faults.fault_rates import NO_FAULTS
from simulator.machines.machines import StaticMachines
from simulator.seeded.pool_sampler import RULES
from simulator.seeded.runs import FAST_FOLDER, Outcome, Plan, run_seeds, sum_outcomes
from simulator.seeded.searches import parallel_random_search
from simulator.seeded.simulated_cluster import ClusterSize, SimulatedCluster
from tests.simulation.api_outage import MINUTE_MS, OutageCluster
from tests.simulation.compute_engine_cluster import ComputeEngineCluster

RATIO_MIN = 10_000
GROWTH_MAX = 2.0
SAVED_MIN_PERCENT = 99.9
SLOTS_PER_AGENT = 10
OUTAGE_MACHINES, OUTAGE_MS = 50, 60 * MINUTE_MS
POOL = "pool-0"
WARNED = replace(NO_FAULTS, notices_hourly=10.0)


class Crowd(SimulatedCluster):
    """A world with a single search and all trials running at once, on agents that are set up
    manually.
    """

    def __init__(self, trials: int, folder: Path) -> None:
        self.trials = trials
        size = ClusterSize(experiments=1, pools=1)
        super().__init__(1, NO_FAULTS, size, folder, unchecked=True)

    def _sample_pool(self, number: int) -> PoolSettings:
        return PoolSettings(RULES[0])

    def _start(self) -> None:
        self._configure_pool(POOL, self.pools[POOL])
        agents = -(-self.trials // SLOTS_PER_AGENT)
        self.machines.add_static_machines(StaticMachines(POOL, (SLOTS_PER_AGENT,) * agents))
        self.clock.call_at(
            60_000, lambda: self.users.submit(parallel_random_search(self.trials, 1), POOL, 0)
        )
        self.clock.call_at(60_000, self._tick)


def worlds(scale: Scale) -> Iterator[Row]:
    """Seeds, notices, and the cost of an event in a small and in a large cluster."""
    yield from _seeds(scale)
    yield from _notices(scale, SimulatedCluster)
    yield from _notices(scale, ComputeEngineCluster, " of Compute Engine")
    yield from _crowds(scale)


def _seeds(scale: Scale) -> Iterator[Row]:
    cores = len(os.sched_getaffinity(0))
    outcomes: list[Outcome] = []
    began = time.perf_counter()
    with progress(f"{scale.world_seeds} worlds under faults"):
        outcomes += run_seeds(range(1, scale.world_seeds + 1), Plan(), cores)
    seconds = time.perf_counter() - began
    found = sum_outcomes(outcomes)
    rate = scale.world_seeds / seconds
    yield row_without_target(
        "worlds under faults", scale.world_seeds, "seeds", beside=f"{rate:.1f}/s"
    )
    yield at_most("violations", float(str(found["violations"])), 0, "seeds")
    yield at_most("instances leaked over all seeds", float(str(found["leaked"])), 0, "instances")
    ratio = float(str(found["virtual_seconds"])) / seconds
    each = float(str(found["virtual_over_real"]))
    beside = f"{each:,.0f} on each of {cores} cores; {found['commits']:,} commits"
    yield at_least("virtual time over real, all cores", ratio, RATIO_MIN, "x", beside=beside)


def _notices(scale: Scale, kind: type[SimulatedCluster], whose: str = "") -> Iterator[Row]:
    promised = kept = 0
    times = " and ".join(f"{number // 1000} s" for number in kind.notices_ms) + whose
    with progress(f"notices of {times} in {scale.world_notices} worlds"):
        for seed in range(1, scale.world_notices + 1):
            with _folder() as path:
                world = kind(seed, WARNED, ClusterSize(), Path(path))
                world.run()
                promised += len(world.process_environment.due_checkpoints)
                kept += world.invariants.count_known_checkpoints(
                    world.process_environment.due_checkpoints
                )
    what = f"notices of {times} that end in a checkpoint which the cluster knows"
    percent = 100 * kept / promised if promised else 0.0
    yield at_least(what, percent, SAVED_MIN_PERCENT, "%", beside=f"{kept:,} of {promised:,}")


def api_outage(scale: Scale) -> Iterator[Row]:
    """Cost of an outage of the API alone, with ticks each minute."""
    minutes = OUTAGE_MS // MINUTE_MS
    with progress(f"an API that is down for {minutes} minutes"), _folder() as path:
        world = OutageCluster(OUTAGE_MACHINES, OUTAGE_MS, Path(path))
        world.run_outage()
    what = f"API down for {minutes} minutes"
    beside = f"of {world.busy} busy agents"
    yield at_most(f"{what}: trials restarted", world.restart_count, 0, "trials", beside=beside)
    yield at_most(f"{what}: instances ended", len(world.ended), 0, "instances", beside=beside)


def _crowds(scale: Scale) -> Iterator[Row]:
    costs: list[float] = []
    for trials in scale.world_trials:
        with progress(f"{trials:,} trials at once"):
            cost, world = _crowd(trials)
        costs.append(cost)
        ended = sum(trial.status.is_final for trial in world.checker.actor_states("trial"))
        what = f"{trials:,} trials at once on {trials // SLOTS_PER_AGENT:,} agents: completed"
        beside = (
            f"{world.steps:,} events, {world.checker.commits:,} commits, {cost:.0f} us an event"
        )
        yield at_least(what, ended, trials, "trials", beside=beside)
    what = "cost of an event, most trials over fewest"
    yield at_most(what, costs[-1] / costs[0], GROWTH_MAX, "x")


def _crowd(trials: int) -> tuple[float, SimulatedCluster]:
    """Return the microseconds per event, and the finished world."""
    with _folder() as path:
        world = Crowd(trials, Path(path))
        gc.collect()
        gc.disable()
        began = time.process_time()
        world.run()
        seconds = time.process_time() - began
        gc.enable()
    return 1e6 * seconds / world.steps, world


def _folder() -> "TemporaryDirectory[str]":
    folder = FAST_FOLDER if FAST_FOLDER.is_dir() else None
    return TemporaryDirectory(prefix="detcloud-world-", dir=folder)
