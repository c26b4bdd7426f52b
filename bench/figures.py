"""Rows of the table of results: a measured value, the target, and the verdict."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

MET, MISSED, UNKNOWN, NO_TARGET = "met", "missed", "not measured", ""
# A figure is flat if its growth from the smallest to the largest size is below this factor.
FLAT_MAX = 1.2


class Row(NamedTuple):
    """A line of the table. `value`: the measured value in `unit`, or None without a measurement."""

    what: str
    target: str
    result: str
    verdict: str
    beside: str = ""
    value: float | None = None
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Scale:
    """The amounts of work to measure. `sizes`: numbers of trials of experiments, smallest first."""

    runs: int = 3
    rate_trials: int = 1_000
    long_trials: int = 10_000
    sizes: tuple[int, ...] = (100, 1_000, 10_000)
    halving_trials: tuple[int, int] = (100, 100_000)
    suggested_trials: int = 60
    suggestion_seeds: int = 20
    known_trials: tuple[int, int] = (100, 1_000)
    optuna_trials: int = 100
    ray_trials: int = 40
    sleepers: int = 100
    training_runs: int = 15
    training_batches: int = 202
    checkpoint_runs: int = 2
    checkpoint_batches: int = 30
    checkpoint_mib: int = 500
    resumed_runs: int = 5
    gang_starts: int = 7
    gang_notices: int = 5
    gang_training_runs: int = 60
    calls: int = 5_000
    data_samples: int = 800
    data_runs: int = 7
    stored_bytes: int = 2 << 30
    store_runs: int = 4
    command_runs: int = 15
    create_runs: int = 5
    start_runs: int = 9
    idle_seconds: float = 10.0
    reading_trials: int = 10_000
    reading_values: int = 1_000_000
    reading_seconds: float = 20.0
    # Workers and trials of simulated searches, fewest first.
    simulated: tuple[tuple[int, int], ...] = ((4, 500), (100, 1_000), (500, 3_000))
    simulated_seeds: int = 20
    simulated_epochs: int = 2_000
    world_seeds: int = 500
    world_notices: int = 60
    world_trials: tuple[int, ...] = (100, 10_000)
    spot_traces: int = 300
    fan_in_trials: int = 200
    fan_in_seconds: float = 20.0
    queued_jobs: int = 10_000
    scheduled_agents: int = 1_000
    decisions: int = 1_000
    pool_requests: int = 1_000
    pool_jobs: int = 10_000
    pool_starts: int = 1_000
    pool_trials: int = 10_000
    agent_minutes: int = 60
    cold_runs: int = 7
    latency_trials: int = 70
    agents: int = 1_000
    agent_rounds: int = 4
    page_experiments: int = 10_000
    page_log_lines: int = 1_000_000
    page_models: int = 10_000
    page_media_steps: int = 50
    page_curves: int = 200
    page_points: int = 10_000
    page_idle_minutes: int = 5
    page_answers: int = 20
    log_bytes: int = 1 << 30
    tunnel_keystrokes: int = 500
    tunnel_bytes: int = 512 << 20
    tunnel_streams: int = 1_000
    webhook_changes: int = 200
    webhook_events: int = 10_000
    deployed_changes: int = 60
    database_trials: int = 200
    group_trials: int = 60
    group_kill_seconds: float = 10.0
    lab_trials: int = 10_000


FULL = Scale()
QUICK = Scale(
    runs=1,
    rate_trials=30,
    long_trials=90,
    sizes=(10, 30),
    halving_trials=(40, 300),
    suggested_trials=14,
    suggestion_seeds=1,
    known_trials=(10, 20),
    optuna_trials=3,
    ray_trials=2,
    sleepers=2,
    training_runs=1,
    training_batches=20,
    checkpoint_runs=1,
    checkpoint_batches=2,
    checkpoint_mib=4,
    resumed_runs=1,
    gang_starts=1,
    gang_notices=1,
    gang_training_runs=1,
    calls=100,
    data_samples=40,
    data_runs=1,
    stored_bytes=32 << 20,
    store_runs=1,
    command_runs=1,
    create_runs=1,
    start_runs=1,
    idle_seconds=1.0,
    reading_trials=30,
    reading_values=3_000,
    reading_seconds=0.5,
    simulated=((2, 30), (8, 60)),
    simulated_seeds=2,
    simulated_epochs=100,
    world_seeds=2,
    world_notices=2,
    world_trials=(10, 30),
    spot_traces=12,
    fan_in_trials=5,
    fan_in_seconds=2.0,
    queued_jobs=300,
    scheduled_agents=40,
    decisions=20,
    pool_requests=50,
    pool_jobs=300,
    pool_starts=10,
    pool_trials=150,
    agent_minutes=5,
    cold_runs=1,
    latency_trials=4,
    agents=20,
    agent_rounds=1,
    page_experiments=30,
    page_log_lines=2_000,
    page_models=40,
    page_media_steps=3,
    page_curves=5,
    page_points=200,
    page_idle_minutes=1,
    page_answers=2,
    log_bytes=4 << 20,
    tunnel_keystrokes=20,
    tunnel_bytes=1 << 20,
    tunnel_streams=20,
    webhook_changes=6,
    webhook_events=60,
    deployed_changes=4,
    database_trials=6,
    group_trials=6,
    group_kill_seconds=2.0,
    lab_trials=40,
)

Figure = Callable[[Scale], Iterator[Row]]


def at_least(what: str, value: float, target: float, unit: str, *, beside: str = "") -> Row:
    """Return a row with the target `value` >= `target`."""
    verdict = MET if value >= target else MISSED
    return _row(what, f">= {number(target)} {unit}", value, unit, verdict, beside)


def at_most(what: str, value: float, target: float, unit: str, *, beside: str = "") -> Row:
    """Return a row with the target `value` <= `target`."""
    verdict = MET if value <= target else MISSED
    return _row(what, f"<= {number(target)} {unit}", value, unit, verdict, beside)


def beats(what: str, value: float, peer: float | None, unit: str, *, beside: str) -> Row:
    """Return a row with the target `value` > `peer`. `peer`: the peer's value, or None if not
    measured.
    """
    verdict = UNKNOWN if peer is None else MET if value > peer else MISSED
    return _row(what, "more than the peer", value, unit, verdict, beside)


def fewer(what: str, value: float, peer: float | None, unit: str, *, beside: str) -> Row:
    """Return a row with the target `value` < `peer`. `peer`: the peer's value, or None if not
    measured.
    """
    verdict = UNKNOWN if peer is None else MET if value < peer else MISSED
    return _row(what, "less than the peer", value, unit, verdict, beside)


def row_without_target(what: str, value: float, unit: str, *, beside: str = "") -> Row:
    """A row without a target."""
    return _row(what, "", value, unit, NO_TARGET, beside)


def row_without_value(what: str, reason: object) -> Row:
    """Return a row without a value, with the reason."""
    return Row(what, "", "", UNKNOWN, beside=" ".join(str(reason).split()))


def number(value: float) -> str:
    """1234.5 -> '1,234', 12.345 -> '12.3', 0.1234 -> '0.123'."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


@contextmanager
def progress(what: str) -> Iterator[None]:
    """Print the current measurement on stderr, and afterwards its duration."""
    started = time.monotonic()
    print(f"  {what} ...", file=sys.stderr, end="", flush=True)
    try:
        yield
    finally:
        print(f" {time.monotonic() - started:.1f} s", file=sys.stderr, flush=True)


def _row(what: str, target: str, value: float, unit: str, verdict: str, beside: str) -> Row:
    return Row(what, target, f"{number(value)} {unit}", verdict, beside, value, unit)
