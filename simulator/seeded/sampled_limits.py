"""Sampled limits of time: quiet hours of pools, and limits of trials.

The samples depend on hashes of the seed. So they leave the other choices of a seed unchanged.
"""

from dataclasses import replace

from control_plane.actors.messages.pool import PoolSettings
from control_plane.actors.records import TrialSettings
from control_plane.quiet_times import upcoming_periods
from control_plane.scheduling.quiet_hours import QuietHours
from control_plane.simulation.hash_fractions import hash_fraction

HOUR_MS = 3_600_000
MINUTE_MS = 60_000
QUIET_SHARE = 0.3
"""The share of pools with quiet hours."""
LIMITED_SHARE = 0.15
"""The share of searches whose trials have a limit of time."""
WINDOW_SHARE = 0.3
"""The share of searches with a restart window."""
URGENT_PRIORITIES = (None, None, 42)
"""The sampled `urgent_priority`. Most jobs have the priority 42."""
BATCHES = 60
_DAYS = tuple(range(7))
_MINUTES_PER_DAY = 24 * 60


def with_quiet_hours(settings: PoolSettings, seed: int, number: int, now_ms: int) -> PoolSettings:
    """Return the settings of a pool, for some pools with quiet hours in the next two hours.

    Args:
        settings: the settings of the pool.
        seed: the seed of the cluster.
        number: the number of the pool.
        now_ms: the time of the start in epoch ms.
    """

    def draw(name: str) -> float:
        return hash_fraction(seed, "quiet", number, name)

    if draw("exists") >= QUIET_SHARE:
        return settings
    begin = now_ms // MINUTE_MS + 10 + int(80 * draw("begin"))
    end = begin + 15 + int(60 * draw("end"))
    rule = QuietHours(
        days=_DAYS,
        begin=begin % _MINUTES_PER_DAY,
        end=end % _MINUTES_PER_DAY,
        time_zone="UTC",
        checkpoints=draw("running") < 0.5,
        urgent_priority=URGENT_PRIORITIES[int(len(URGENT_PRIORITIES) * draw("urgent"))],
    )
    return replace(settings, quiet_hours=(rule,), quiet_periods=upcoming_periods((rule,), now_ms))


def with_trial_limits(settings: TrialSettings, seed: int, batch_seconds: float) -> TrialSettings:
    """Return the settings of a search's trials, for some searches with limits of time.

    A limit of time is between a third of a whole training and more than two trainings. With a
    restart window, the code may fail once more than `max_restarts` within the window.
    """
    limit_ms = int(batch_seconds * 1_000 * BATCHES * (0.3 + 2 * hash_fraction(seed, "limit")))
    is_limited = hash_fraction(seed, "limited") < LIMITED_SHARE
    has_window = hash_fraction(seed, "window") < WINDOW_SHARE
    return replace(
        settings,
        max_restarts=max(0, settings.max_restarts - has_window),
        trial_duration_ms=limit_ms if is_limited else None,
        restart_window_ms=HOUR_MS if has_window else None,
    )
