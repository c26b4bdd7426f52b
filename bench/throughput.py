"""Trials per second against targets, against a longer experiment, and against peers in the same
run.
"""

from collections.abc import Iterator
from statistics import mean

from bench import peers
from bench.figures import Row, Scale, at_least, beats, progress
from bench.trials import Load, bare_rate, rate

SYNCED_MIN, UNSYNCED_MIN = 300, 1_000
LONG_SHARE_MIN_PERCENT = 70
MANY_OPEN = 256
UNIT = "trials/s"


def trials(scale: Scale) -> Iterator[Row]:
    """Trials created, run without training and closed."""
    count = scale.rate_trials
    synced = rate(Load(count, "FULL"), scale.runs)
    yield at_least(f"{count:,} trials, every commit synced", synced, SYNCED_MIN, UNIT)
    unsynced = rate(Load(count), scale.runs)
    bare = f"{bare_rate(Load(count)):,.0f} if only the commits themselves took time"
    yield at_least(f"{count:,} trials, not synced", unsynced, UNSYNCED_MIN, UNIT, beside=bare)
    many = rate(Load(count, concurrent=MANY_OPEN), scale.runs)
    yield at_least(f"{count:,} trials, not synced, {MANY_OPEN} open", many, UNSYNCED_MIN, UNIT)
    yield _kept_at_length(scale)


def against_peers(scale: Scale) -> Iterator[Row]:
    """Trials a second with every commit synced, measured between runs of the peers."""
    for peer, count in (
        ("optuna", scale.optuna_trials),
        ("ray", scale.ray_trials),
        ("ray-reusing-actors", scale.ray_trials),
    ):
        before = rate(Load(scale.rate_trials, "FULL"))
        with progress(f"{peer}, {count} trials"):
            measured = peers.measure(peer, count)
        ours = mean((before, rate(Load(scale.rate_trials, "FULL"))))
        what = f"trials, every commit synced, against {measured.name}"
        yield beats(what, ours, measured.rate, UNIT, beside=measured.text)


def _kept_at_length(scale: Scale) -> Row:
    """Measure a long experiment between two short experiments, so that all see the same machine."""
    before = rate(Load(scale.rate_trials))
    long = rate(Load(scale.long_trials))
    short = mean((before, rate(Load(scale.rate_trials))))
    what = f"rate at {scale.long_trials:,} trials, of that at {scale.rate_trials:,}"
    rates = f"{long:,.0f} of {short:,.0f} {UNIT}"
    return at_least(what, 100 * long / short, LONG_SHARE_MIN_PERCENT, "%", beside=rates)
