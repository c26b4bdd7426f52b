"""The cost of a pool's decisions with mail, state on SQLite, and trials."""

import gc
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.figures import Row, Scale, at_least, at_most, progress, row_without_target
from bench.instant_agent import InstantAgent
from bench.metered_table import MeteredTable
from bench.trials import Load, new_service, submission_of
from bench.writes import UNITS_MAX, Account, spread
from control_plane.actors import addresses
from control_plane.actors.job_row import JobRow, encode_job, job_sort_key, jobs_partition
from control_plane.actors.messages.pool import (
    AgentJoined,
    JobChanged,
    PoolConfigured,
    PoolSettings,
    SlotsReleased,
    SlotsRequested,
)
from control_plane.actors.pool.state import PoolState
from control_plane.engine import due_rows, mailbox
from control_plane.engine.actor_types import encode_message_for
from control_plane.engine.engine import Engine
from control_plane.queries.job import load_queue
from control_plane.services import Services
from control_plane.simulation.experiment import simulate_experiment
from control_plane.simulation.learning_curves import LearningCurve
from control_plane.state.sqlite import SqliteTable
from control_plane.state.table import Expect, Key, Put, StateTable
from local_cluster.embedded_cluster import build_embedded_cluster
from local_cluster.home import HomeFolder

POOL = "default"
ADDRESS = addresses.pool(POOL)
SLOTS = 8
RATE_MIN = 500
GAP_MS_MAX = 20
QUEUE_MS_MAX = 20
# Maximal ratio of the cost per message with many trials to the cost with a hundred.
GROWTH_MAX = 2.0
FEW_TRIALS = 100
COMMITTED_MAX = 90
# The number of releases with billed commits.
BILLED = 96


def pools(scale: Scale) -> Iterator[Row]:
    """Yield decisions per second, write units, gaps between starts, the queue's time, and the
    simulator's growth.
    """
    yield _decisions(scale.pool_requests)
    yield _units(scale.pool_jobs)
    yield _gap(scale.pool_starts)
    yield _queue_of_paused(scale.pool_jobs)
    yield from _growth(scale.pool_trials)


def _decisions(requests: int) -> Row:
    """Measure requests of a hundred jobs in the mailbox, with enough slots for all requests."""
    with TemporaryDirectory(prefix="detcloud-bench-") as folder, progress(f"{requests} starts"):
        table = SqliteTable(Path(folder) / "table.db")
        engine = _engine(table)
        _fill(engine, -(-requests // SLOTS))
        _mail(engine, [_request(1 + n % 100, n) for n in range(requests)])
        started = time.perf_counter()
        _advance(engine)
        seconds = time.perf_counter() - started
        state = _state(engine)
        table.close()
    if state.running != requests:
        raise RuntimeError(f"{state.running} of {requests} requests started: {state.wait_reason}")
    what = "scheduling decisions with state writes on SQLite, every commit synced"
    return at_least(what, requests / seconds, RATE_MIN, "/s")


def _units(jobs: int) -> Row:
    """Measure the write units of a full pool with `jobs` waiting jobs.

    By turns a job arrives, and a release starts the first waiting job.
    """
    account = Account()
    with TemporaryDirectory(prefix="detcloud-bench-") as folder, progress(f"{jobs} queued jobs"):
        table = SqliteTable(Path(folder) / "table.db", synchronous="NORMAL")
        engine = _engine(table)
        billed = min(BILLED, jobs // 2)
        agents = -(-billed // SLOTS)
        _fill(engine, agents)
        running = agents * SLOTS
        # The pool is draining, so that no plans are made meanwhile.
        engine.execute_command(
            ADDRESS, PoolConfigured(POOL, PoolSettings(draining=True, stores_idle_jobs_apart=True))
        )
        for first in range(0, jobs + running, 1_000):
            numbers = range(first, min(first + 1_000, jobs + running))
            _mail(engine, [_request(1 + n, n) for n in numbers])
            _advance(engine)
        engine.execute_command(
            ADDRESS, PoolConfigured(POOL, PoolSettings(stores_idle_jobs_apart=True))
        )
        _advance(engine)
        metered = Engine(MeteredTable(table, account.take), engine.clock)
        for number in range(billed):
            latest = jobs + running + number
            _mail(engine, [_request(1 + latest, latest)])
            metered.advance(ADDRESS)
            _mail(engine, [SlotsReleased(number, 1, _ticket(1 + number, number), (), 1 + number)])
            metered.advance(ADDRESS)
        state = _state(engine)
        table.close()
    if (state.running, state.queued) != (running, jobs):
        raise RuntimeError(f"{state.running} run and {state.queued} wait")
    units = account.units_per_decision()
    beside = spread(account.per_decision())
    return at_most(
        f"write units per decision at {jobs:,} jobs", units, UNITS_MAX, "units", beside=beside
    )


def _gap(jobs: int) -> Row:
    """Measure the mean gap between starts of single-trial experiments that are submitted in turn to
    free slots.
    """
    starts: list[float] = []
    with TemporaryDirectory(prefix="detcloud-bench-") as folder, progress(f"{jobs} experiments"):
        table = SqliteTable(Path(folder) / "table.db")
        engine = _engine(table)
        agents = [
            InstantAgent(new_service(engine), POOL, SLOTS, name=f"bench-{number}")
            for number in range(-(-jobs // SLOTS))
        ]
        seen = 0

        def count_starts(address: str) -> None:
            nonlocal seen
            if address == ADDRESS and (now := _state(engine).started) > seen:
                starts.extend([time.perf_counter()] * (now - seen))
                seen = now

        engine.on_commit = count_starts
        for number in range(1, jobs + 1):
            message = submission_of(Load(1, "FULL", concurrent=1))
            experiment = replace(message, experiment_id=number)
            engine.execute_command(addresses.experiment(number), experiment)
        for agent in agents:
            agent.work(lambda: True, lambda: due_rows.process_due_rows(engine))
        table.close()
    gap_ms = 1_000 * (starts[-1] - starts[0]) / (jobs - 1)
    what = f"{jobs:,} jobs submitted at once to free slots: mean gap between consecutive starts"
    return at_most(what, gap_ms, GAP_MS_MAX, "ms")


def _queue_of_paused(jobs: int) -> Row:
    """Measure the queue of a pool with `jobs` paused experiments and a waiting one.

    The reading process has not read the pool before.
    """
    with TemporaryDirectory(prefix="detcloud-bench-") as folder, progress(f"{jobs} paused"):
        home = HomeFolder(Path(folder))
        taken = [_queue_ms(home)]
        cluster = build_embedded_cluster(home, "bench")
        services: Services = cluster.app.state.services
        for first in range(1, jobs + 1, 50):
            numbers = range(first, min(first + 50, jobs + 1))
            for number in numbers:
                key = Key(jobs_partition(POOL), job_sort_key(number))
                row = encode_job(JobRow(submitted_ms=number))
                services.table.commit([Put(key, 1, row, Expect.ANYTHING)])
            _mail(services.engine, [JobChanged(number) for number in numbers])
            _advance(services.engine)
        _mail(services.engine, [_request(jobs + 1, jobs + 1)])
        _advance(services.engine)
        cluster.table.close()
        taken.append(_queue_ms(home))
    beside = f"{taken[0]:.1f} ms with none"
    what = f"the queue of a pool with {jobs:,} paused experiments"
    return at_most(what, taken[1], QUEUE_MS_MAX, "ms", beside=beside)


def _queue_ms(home: HomeFolder) -> float:
    cluster = build_embedded_cluster(home, "bench")
    began = time.perf_counter()
    queue = load_queue(cluster.app.state.services, POOL)
    taken_ms = 1_000 * (time.perf_counter() - began)
    cluster.table.close()
    if len(queue.order) > 1:
        raise RuntimeError(f"{len(queue.order)} jobs want slots")
    return taken_ms


def _growth(trials: int) -> Iterator[Row]:
    """Measure the simulator's cost per batch of full trainings, with slots for 80 % of trials."""
    gc.freeze()
    few = _cost_us(FEW_TRIALS)
    many = _cost_us(trials)
    what = f"simulated trials at once, {trials:,}: cost of each"
    yield row_without_target(what, many, "us", beside=f"{few:.0f} us at {FEW_TRIALS}")
    yield at_most("growth of that cost", many / few, GROWTH_MAX, "x")


def _cost_us(trials: int) -> float:
    """Time of this process for each trial's life, in microseconds."""
    repeats = max(1, 1_000 // trials)
    load = Load(trials, concurrent=trials)
    with progress(f"{trials} simulated trials at once"):
        began = time.process_time()
        for _ in range(repeats):
            simulate_experiment(submission_of(load), trials * 8 // 10, _InstantCurves())
        return (time.process_time() - began) * 1e6 / (trials * repeats)


@dataclass(frozen=True)
class _Line:
    """A learning curve for trials that end at different times."""

    batch_ms: float
    known_batches: int | None = None

    def metric(self, batches: int) -> float | None:
        """A metric that never changes."""
        return 0.0


class _InstantCurves:
    """Learning curves of trials that take about a second a batch."""

    def curve_for(self, trial: object) -> LearningCurve:
        """The trial's curve, a little slower for a larger number."""
        number: int = getattr(trial, "number", 0)
        return _Line(1_000.0 + number * 37 % 997)


def _engine(table: StateTable) -> Engine:
    engine = Engine(table, lambda: time.time_ns() // 1_000_000)
    engine.execute_command(ADDRESS, PoolConfigured(POOL, PoolSettings(stores_idle_jobs_apart=True)))
    return engine


def _fill(engine: Engine, agents: int) -> None:
    """Add agents of SLOTS slots to the pool."""
    joined = [AgentJoined(f"agent-{n:05d}", 1, tuple(range(SLOTS))) for n in range(agents)]
    _mail(engine, joined)
    _advance(engine)


def _request(group: int, trial_id: int) -> SlotsRequested:
    return SlotsRequested(trial_id, 1, 1, _ticket(group, trial_id), group)


def _ticket(group: int, trial_id: int) -> str:
    return f"{group:014d}.{trial_id:014d}.{trial_id:012d}"


def _mail(
    engine: Engine,
    messages: Sequence[SlotsRequested | AgentJoined | SlotsReleased | JobChanged],
) -> None:
    """Put messages into the mailbox, each in a separate row from a separate sender."""
    now_ms, clock = engine.clock(), 0
    puts = []
    for number, message in enumerate(messages):
        clock = mailbox.next_clock(clock, now_ms)
        sender = f"bench#{number}"
        key = mailbox.mail_key(ADDRESS, clock, sender)
        encoded = [encode_message_for(ADDRESS, message)]
        due_ms = now_ms + mailbox.RECOVERY_DELAY_MS
        puts.append(mailbox.mail_write(key, sender, mailbox.FIRST, clock, encoded, due_ms))
    for first in range(0, len(puts), COMMITTED_MAX):
        engine.table.commit(puts[first : first + COMMITTED_MAX])


def _advance(engine: Engine) -> None:
    """Advance the pool until no mail and no further work are left. Other actors do not advance."""
    while ADDRESS in engine.advance(ADDRESS):
        pass


def _state(engine: Engine) -> PoolState:
    state = engine.read_state(ADDRESS)
    assert isinstance(state, PoolState)
    return state
