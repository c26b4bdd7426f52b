"""The samples of all metrics of a cluster.

A reading of an idle cluster needs six reads and three for each pool. Work adds these reads:

- A pool that has changed: the head again, the settings, the agents and the jobs of the pool, and
  the first request of at most WAITING_JOBS_MAX jobs.
- A read for each 100 of at most EXPERIMENTS_MAX experiments that have not ended.
- A query for each of at most GPU_TRIALS_MAX running trials with slots.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from threading import Lock
from typing import get_args

from control_plane.actors import addresses
from control_plane.actors.agent.actor import AGENTS
from control_plane.actors.cost import to_micros
from control_plane.actors.experiment.listing import decode_listings
from control_plane.actors.experiment.state import LISTING, ExperimentState
from control_plane.actors.identifiers import COUNTERS
from control_plane.actors.job_row import jobs_partition
from control_plane.actors.records import Status
from control_plane.alarms.kinds import CLUSTER_ALARMS
from control_plane.alarms.rows import ALARMS, decode_alarm
from control_plane.fleet.bills import (
    MONTH,
    bill_total,
    bills_partition,
    decode_bill,
    instance_bill,
    utc_day,
)
from control_plane.fleet.records import InstanceRow, InstanceState, Market
from control_plane.fleet.rows import read_fleets, read_instances
from control_plane.monitoring import families
from control_plane.monitoring.families import Family, Sample
from control_plane.monitoring.gpu_use import read_gpu_use
from control_plane.monitoring.pool_activity import PoolActivities, PoolActivity
from control_plane.queries import pool as pools
from control_plane.queries.conditions import experiment_condition
from control_plane.queries.cost import dollars
from control_plane.queries.job_counts import JobCounts
from control_plane.services import Services
from control_plane.state.row_ranges import read_rows
from control_plane.state.table import Key

POOLS_MAX = 200
"""The most pools that are read, as many as a configuration may have."""
KEPT_MS = 15_000
"""The time for which a process answers with the same samples."""
EXPERIMENTS_MAX = 500
"""The most experiments that have not ended and are read. The newest of each pool count."""
RECENT_MAX = 100
"""The number of the newest experiments among which ended experiments are counted."""
RECENT_KEPT_MS = 300_000
"""The time for which a process keeps the number of ended experiments, because Firestore charges for
each row of the list.
"""
GPU_TRIALS_MAX = 50
"""The most running trials whose GPUs are read, the latest starts first."""

_INSTANCE_STATES = {
    InstanceState.STARTING: "starting",
    InstanceState.DRAINING: "draining",
    InstanceState.TERMINATING: "terminating",
}
_ENDS = {Status.COMPLETED: "finished", Status.CANCELED: "canceled", Status.ERROR: "failed"}
_POOL_STATES = get_args(pools.PoolStateName)


class ClusterMetrics:
    """The reader of a cluster's samples, which keeps the samples for KEPT_MS.

    Threads may share a reader. Of concurrent callers without samples, one reads and the others
    wait.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._activities = PoolActivities()
        self._kept: tuple[int, tuple[Sample, ...]] | None = None
        self._recent: tuple[int, tuple[Sample, ...]] | None = None

    def read(self, services: Services) -> tuple[Sample, ...]:
        """Return the samples of all metrics, which are at most KEPT_MS old.

        Raises TableError, and RequestError unavailable if a pool changes too fast to be read.
        """
        with self._lock:
            now_ms = services.now_ms()
            # The absolute differences also end the use of samples from a clock ahead.
            if self._recent is None or abs(now_ms - self._recent[0]) >= RECENT_KEPT_MS:
                self._recent = now_ms, tuple(_recent_samples(services))
            if self._kept is None or abs(now_ms - self._kept[0]) >= KEPT_MS:
                read = _read_samples(services, self._activities, now_ms)
                self._kept = now_ms, (*read, *self._recent[1])
            return self._kept[1]


@dataclass(frozen=True, slots=True)
class _LiveExperiment:
    """An experiment that has not ended, with the allocations of the experiment."""

    state: ExperimentState
    counts: JobCounts


def _read_samples(services: Services, activities: PoolActivities, now_ms: int) -> Iterator[Sample]:
    """Read the rows of all metrics, and yield the samples. Raises TableError and RequestError."""
    names = pools.pool_names(services)
    shown = names[:POOLS_MAX]
    activity = activities.read(services, shown)
    experiments, left_out = _read_live_experiments(services, activity)
    running = sorted(
        ((start, pool, name) for pool in activity for name, start in _allocations(activity, pool)),
        reverse=True,
    )
    yield Sample(families.INFO, (services.cluster_id, services.version), 1)
    yield from _agent_samples(services, activity)
    for pool, found in activity.items():
        yield from _pool_samples(pool, found, now_ms)
        yield from _cost_samples(services, pool, found, now_ms)
    yield from _pass_samples(services, activity, now_ms)
    yield from _experiment_samples(experiments)
    yield from _submission_samples(services)
    yield from _alarm_samples(services)
    yield from _gpu_samples(services, running[:GPU_TRIALS_MAX], now_ms)
    yield from _low_use_samples(services, running[:GPU_TRIALS_MAX])
    yield Sample(families.LEFT_OUT, ("pools",), len(names) - len(shown))
    yield Sample(families.LEFT_OUT, ("experiments",), left_out)
    yield Sample(families.LEFT_OUT, ("gpu_trials",), max(0, len(running) - GPU_TRIALS_MAX))


def _allocations(
    activity: Mapping[str, PoolActivity], pool: str
) -> Iterable[tuple[tuple[int, int], int]]:
    """Return the allocations of a pool that hold slots, each with the number of the start."""
    return activity[pool].allocations.items()


def _agent_samples(services: Services, activity: Mapping[str, PoolActivity]) -> Iterator[Sample]:
    """Yield the agents and slots of each pool. An agent that its pool lacks is lost."""
    lost = dict.fromkeys(activity, 0)
    for row in read_rows(services.table, AGENTS):
        pool = row.body.decode()
        if pool in lost and row.key.sort not in activity[pool].agent_names:
            lost[pool] += 1
    for pool, found in activity.items():
        yield from _by_state(families.AGENTS, (pool,), {**found.agents, "lost": lost[pool]})
        yield from _by_state(families.SLOTS, (pool,), found.slots)


def _pool_samples(pool: str, found: PoolActivity, now_ms: int) -> Iterator[Sample]:
    """Yield the state, the allocations and the oldest wait of a pool."""
    present = pools.pool_state(found.settings, now_ms)
    states = {state.lower(): int(state == present) for state in _POOL_STATES}
    yield from _by_state(families.POOL_STATE, (pool,), states)
    allocations = {"running": found.state.running, "queued": found.state.queued}
    yield from _by_state(families.ALLOCATIONS, (pool,), allocations)
    yield Sample(families.QUEUED_SLOTS, (pool,), found.queued_slots)
    since_ms = found.waits_since_ms
    wait_ms = 0 if since_ms is None else max(0, now_ms - since_ms)
    yield Sample(families.OLDEST_WAIT, (pool,), wait_ms / 1000)
    yield Sample(families.ALLOCATIONS_STARTED, (pool,), found.state.started)


def _cost_samples(
    services: Services, pool: str, found: PoolActivity, now_ms: int
) -> Iterator[Sample]:
    """Yield the instances, the costs and the budget of a pool. Raises TableError."""
    # Live instances are read first: an instance that ends meanwhile counts twice instead of never.
    instances = read_instances(services.table, pool)
    today = utc_day(now_ms)
    month = today.isoformat()[:MONTH]
    ended = [
        decode_bill(row.body)
        for row in read_rows(services.table, bills_partition(pool), month, f"{month}~")
    ]
    bill = bill_total([*ended, *(instance_bill(row, now_ms) for row in instances)])
    first = today.replace(day=1)
    spent = sum(micros for day, micros in bill.items() if first <= day <= today)
    counts = Counter((row.offering.market.value, _instance_state(row)) for row in instances)
    for (market, state), count in sorted(counts.items()):
        yield Sample(families.INSTANCES, (pool, market, state), count)
    for market in Market:
        rate = sum(
            to_micros(row.offering.price_per_hour)
            for row in instances
            if row.offering.market is market
        )
        yield Sample(families.SPENDING_RATE, (pool, market.value), dollars(rate))
    yield Sample(families.COST_TODAY, (pool,), dollars(bill.get(today, 0)))
    yield Sample(families.COST_MONTH, (pool,), dollars(spent))
    if found.settings.budget_micros is not None:
        yield Sample(families.BUDGET, (pool,), dollars(found.settings.budget_micros))


def _instance_state(row: InstanceRow) -> str:
    """Return the state of an instance for the label of a metric."""
    if row.state is InstanceState.RUNNING:
        return "active" if row.idle_ms is None else "idle"
    return _INSTANCE_STATES[row.state]


def _pass_samples(
    services: Services, activity: Mapping[str, PoolActivity], now_ms: int
) -> Iterator[Sample]:
    """Yield the age of the provisioner's last pass over each pool. Raises TableError."""
    for fleet in read_fleets(services.table):
        if fleet.pool in activity and fleet.passed_ms:
            age_ms = max(0, now_ms - fleet.passed_ms)
            yield Sample(families.PASS_AGE, (fleet.pool,), age_ms / 1000)


def _read_live_experiments(
    services: Services, activity: Mapping[str, PoolActivity]
) -> tuple[list[_LiveExperiment], int]:
    """Read the experiments of all pools that have not ended, at most EXPERIMENTS_MAX.

    The second value is the number of further experiments that were found and not read. Of each
    pool, at most EXPERIMENTS_MAX + 1 rows of jobs are read. Raises TableError.
    """
    found: dict[int, str] = {}
    for pool in activity:
        page = services.table.query(
            jobs_partition(pool), " ", "\x7f", limit=EXPERIMENTS_MAX + 1, descending=True
        )
        found |= {int(row.key.sort): pool for row in page.rows}
    newest = sorted(found, reverse=True)
    read = newest[:EXPERIMENTS_MAX]
    states = services.engine.read_states([addresses.experiment(number) for number in read])
    none = JobCounts()
    live = [
        _LiveExperiment(state, activity[found[number]].jobs.get(number, none))
        for number, state in zip(read, states, strict=True)
        if isinstance(state, ExperimentState) and state.pool in activity
    ]
    return live, len(newest) - len(read)


def _experiment_samples(experiments: Iterable[_LiveExperiment]) -> Iterator[Sample]:
    """Yield the numbers of live experiments and of the trials, by pool and state."""
    experiment_counts: Counter[tuple[str, str, str]] = Counter()
    trial_counts: Counter[tuple[str, str]] = Counter()
    for experiment in experiments:
        state, counts = experiment.state, experiment.counts
        condition = experiment_condition(state.status, **counts._asdict())
        experiment_counts[state.pool, state.kind.value, condition] += 1
        for trial_state, count in _trial_states(state, counts).items():
            trial_counts[state.pool, trial_state] += count
    for labels, count in sorted(experiment_counts.items()):
        yield Sample(families.EXPERIMENTS, labels, count)
    for trial_labels, count in sorted(trial_counts.items()):
        yield Sample(families.TRIALS, trial_labels, count)


def _trial_states(state: ExperimentState, counts: JobCounts) -> dict[str, int]:
    """Return the number of an experiment's trials by state."""
    finished, failed = state.trials_completed, state.trials_errored
    return {
        "running": counts.running,
        "queued": counts.queued,
        "waiting": max(0, state.trials_open - counts.running - counts.queued),
        "finished": finished,
        "failed": failed,
        "canceled": max(0, state.trials - state.trials_open - finished - failed),
    }


def _submission_samples(services: Services) -> Iterator[Sample]:
    """Yield the number of submitted experiments. Raises TableError."""
    counter = services.table.get(Key(COUNTERS, "experiment"))
    submitted = 0 if counter is None else int(counter.body) - 1
    yield Sample(families.EXPERIMENTS_SUBMITTED, (), submitted)


def _recent_samples(services: Services) -> Iterator[Sample]:
    """Yield the ended experiments among the newest by state. Raises TableError."""
    page = services.table.query(LISTING, " ", "\x7f", limit=RECENT_MAX, descending=True)
    states = [row.state for row in decode_listings([row.body for row in page.rows])]
    counts = Counter(states)
    ends = {name: counts[status.value] for status, name in _ENDS.items()}
    yield from _by_state(families.RECENT_EXPERIMENTS, (), ends)


def _alarm_samples(services: Services) -> Iterator[Sample]:
    """Yield a sample for each alarm of the cluster, and for each pool with a row.

    Raises TableError.
    """
    raised = {(name, ""): 0 for name in CLUSTER_ALARMS}
    for row in read_rows(services.table, ALARMS):
        alarm = decode_alarm(row.body)
        is_raised = alarm.raised_ms is not None and alarm.cleared_ms is None
        raised[alarm.alarm, alarm.pool] = int(is_raised)
    for labels, value in sorted(raised.items()):
        yield Sample(families.ALARM_RAISED, labels, value)


def _gpu_samples(
    services: Services, running: Iterable[tuple[int, str, tuple[int, int]]], now_ms: int
) -> Iterator[Sample]:
    """Yield the use of the GPUs of each pool with a recent report. Raises TableError."""
    by_pool: dict[str, list[tuple[int, int]]] = {}
    for _, pool, allocation in running:
        by_pool.setdefault(pool, []).append(allocation)
    for pool, allocations in sorted(by_pool.items()):
        uses = list(read_gpu_use(services.table, allocations, now_ms))
        utilization = list(chain.from_iterable(use.utilization for use in uses))
        free = list(chain.from_iterable(use.free_bytes for use in uses))
        if utilization:
            yield Sample(families.MEASURED_GPUS, (pool,), len(utilization))
            yield Sample(families.GPU_UTILIZATION, (pool,), sum(utilization) / len(utilization))
        if free:
            yield Sample(families.GPU_FREE_MEMORY, (pool,), sum(free) / len(free))


def _low_use_samples(
    services: Services, running: Sequence[tuple[int, str, tuple[int, int]]]
) -> Iterator[Sample]:
    """Yield the number of running trials with low use for each pool with running trials.

    Reads the trials. Raises TableError.
    """
    trials = services.experiments.read_trials([trial_id for _, _, (trial_id, _) in running])
    counts = {pool: 0 for _, pool, _ in sorted(running)}
    for (_, pool, _), trial in zip(running, trials, strict=True):
        low_use = trial.allocation.low_use if trial and trial.allocation else None
        counts[pool] += low_use is not None and low_use.since_ms is not None
    for pool, count in sorted(counts.items()):
        yield Sample(families.LOW_USE_TRIALS, (pool,), count)


def _by_state(
    family: Family, labels: tuple[str, ...], values: Mapping[str, float]
) -> Iterator[Sample]:
    """Yield a sample for each state, the last label of the family."""
    for state, value in values.items():
        yield Sample(family, (*labels, state), value)
