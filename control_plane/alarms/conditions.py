"""The conditions of the cluster's alarms, as functions of stored records. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from control_plane.actors.cost import MICROS_PER_DOLLAR, render_dollars, to_micros
from control_plane.alarms.kinds import FAILED_BOOTS, HOURLY_COST, LAG, MACHINE_AGE, QUEUE_WAIT
from control_plane.alarms.records import CostHistory, Finding
from control_plane.fleet.records import ErrorKind, FleetRow, InstanceRow
from detcloud.shared.plurals import count_text

HOUR_MS = 3_600_000
# A new level of costs raises the alarm for a day, and is then the level to compare with.
HOURS_SKIPPED = 24
HOURS_COMPARED = 7 * 24


@dataclass(frozen=True, slots=True)
class WaitingJob:
    """The job of a pool that has waited longest without any slot."""

    pool: str
    job: int
    """The number of the job's experiment."""
    since_ms: int
    """The time of the oldest queued request."""
    reason: str
    """Why the pool does not start its first request, or ""."""


def find_failed_boots(fleets: Iterable[FleetRow], failures_min: int) -> Iterator[Finding]:
    """Yield a finding for each pool with an offering of failed boots in a row.

    The offering with the most failures in a row is named, and the last failure's message.
    """
    for fleet in fleets:
        failing = {
            name: health
            for name, health in fleet.health.items()
            if health.kind is ErrorKind.BOOT and health.errors >= failures_min
        }
        if failing:
            name = max(sorted(failing), key=lambda offering: failing[offering].errors)
            worst = failing[name]
            text = f"the last {worst.errors} machines of offering {name} failed to boot"
            value = boots_text(worst.errors)
            yield Finding(FAILED_BOOTS.name, fleet.pool, _join(text, worst.message), value)


def find_queue_waits(
    waiting: Iterable[WaitingJob], wait_ms_max: int, now_ms: int
) -> Iterator[Finding]:
    """Yield a finding for each job that has waited for at least `wait_ms_max`."""
    for wait in waiting:
        waited_ms = now_ms - wait.since_ms
        if waited_ms >= wait_ms_max:
            value = time_text(waited_ms)
            text = f"job {wait.job} has waited for slots for {value}"
            yield Finding(QUEUE_WAIT.name, wait.pool, _join(text, wait.reason), value)


def find_old_machines(
    instances: Mapping[str, Iterable[InstanceRow]], age_ms_max: int, now_ms: int
) -> Iterator[Finding]:
    """Yield a finding for each pool with a machine older than `age_ms_max`; name the oldest.

    `instances` has the live instances of each pool.
    """
    for pool, rows in instances.items():
        old = [row for row in rows if now_ms - row.launched_ms > age_ms_max]
        if old:
            oldest = min(old, key=lambda row: (row.launched_ms, row.id))
            age = time_text(now_ms - oldest.launched_ms)
            text = f"machine {oldest.id} was launched {age} ago"
            others = f"{len(old) - 1} more machines are too old" if len(old) > 1 else ""
            yield Finding(MACHINE_AGE.name, pool, _join(text, others), age)


def find_late_messages(late_ms: int, late_ms_max: int) -> Iterator[Finding]:
    """Yield a finding if the oldest message had waited `late_ms` and this is too long."""
    if late_ms >= late_ms_max:
        value = time_text(late_ms)
        text = f"a message had waited for {value} until the tick found it"
        yield Finding(LAG.name, "", text, value)


def find_hourly_cost(
    history: CostHistory, micros: int, factor: float, minimum: float, now_ms: int
) -> Iterator[Finding]:
    """Yield a finding if the machines cost much more an hour than in the week before.

    The week has HOURS_COMPARED hours and ended HOURS_SKIPPED hours ago. Yield nothing before the
    first hour of the history is that old.

    Args:
        history: the highest costs of the last hours.
        micros: the present micro-dollars per hour.
        factor: how many times the most expensive hour is too much.
        minimum: the dollars per hour up to which the cost is never too high.
        now_ms: the time in epoch ms.
    """
    end = now_ms // HOUR_MS - HOURS_SKIPPED
    if history.began_hour >= end:
        return
    compared = [peak for hour, peak in history.peaks.items() if end - HOURS_COMPARED <= hour < end]
    highest = max(compared, default=0)
    if micros > factor * highest and micros > minimum * MICROS_PER_DOLLAR:
        value = f"{render_dollars(micros)} an hour"
        text = (
            f"the machines cost {value}; the most expensive hour of the "
            f"week before cost {render_dollars(highest)}"
        )
        yield Finding(HOURLY_COST.name, "", text, value)


def hourly_cost_micros(instances: Mapping[str, Iterable[InstanceRow]]) -> int:
    """Return the micro-dollars per hour of all live instances, given by pool."""
    return sum(
        to_micros(row.offering.price_per_hour) for rows in instances.values() for row in rows
    )


def add_hourly_cost(history: CostHistory | None, micros: int, now_ms: int) -> CostHistory:
    """Return the history with the present cost per hour in the hour of `now_ms`.

    The highest cost of each hour is kept. Hours that are no longer compared are removed only
    together with a change, so that an idle cluster's history stays the same.

    Args:
        history: the stored history, or None before the first record.
        micros: the present micro-dollars per hour.
        now_ms: the time in epoch ms.
    """
    hour = now_ms // HOUR_MS
    before = history or CostHistory(hour)
    if micros <= before.peaks.get(hour, 0):
        return before
    first = hour - HOURS_COMPARED - HOURS_SKIPPED
    kept = {old: peak for old, peak in before.peaks.items() if old >= first}
    return replace(before, peaks=kept | {hour: micros})


def boots_text(failures: int) -> str:
    """Return a number of failed boots, like `2 failed boots in a row`."""
    return f"{count_text(failures, 'failed boot')} in a row"


def time_text(time_ms: int) -> str:
    """Render a time in ms, like `3 d 4 h`, `2 h 5 min`, `2 h`, `7 min` or `45 s`."""
    minutes, seconds = divmod(max(0, time_ms) // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h" if hours else f"{days} d"
    if hours:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{minutes} min" if minutes else f"{seconds} s"


def _join(text: str, more: str) -> str:
    """Return two parts of a sentence with a semicolon, or the first part if `more` is empty."""
    return f"{text}; {more}" if more else text
