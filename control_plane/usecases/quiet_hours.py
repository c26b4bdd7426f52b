"""The check of the quiet hours of pools, and the periods of new rules."""

from collections.abc import Mapping

from control_plane.actors.messages.pool import PoolSettings
from control_plane.actors.pool.quiet_hours import with_periods
from control_plane.config.pools import ResourcePool
from control_plane.config.quiet_hours import SECTION, quiet_rules
from control_plane.errors import Code, Detail, RequestError


def check_quiet_hours(pools_by_place: Mapping[str, ResourcePool], now_ms: int) -> None:
    """Check the time zones of quiet hours, and that the quiet hours of each pool end.

    Args:
        pools_by_place: the pools by the prefix of their paths in error messages.
        now_ms: the time in epoch ms.

    Raises:
        RequestError: invalid, with a detail for each pool with a problem.
    """
    details = [
        Detail(f"{place}{SECTION}{path}", text)
        for place, pool in pools_by_place.items()
        for path, text in find_quiet_problems(pool, now_ms)
    ]
    if details:
        texts = "; ".join(f"{detail.path} {detail.message}" for detail in details)
        raise RequestError(Code.INVALID, texts, details)


def find_quiet_problems(pool: ResourcePool, now_ms: int) -> list[tuple[str, str]]:
    """Return the problems of a pool's quiet hours: the path below the section, and the text."""
    rules = quiet_rules(pool.quiet_hours)
    if not rules:
        return []
    # Few pools have quiet hours, and the imports take 30 ms (bench/cold_starts.py).
    from control_plane.cron_times import ZoneUnknown, find_zone
    from control_plane.quiet_times import AlwaysQuiet, upcoming_periods

    problems = []
    for place, rule in enumerate(rules):
        try:
            find_zone(rule.time_zone)
        except ZoneUnknown as error:
            problems.append((f"[{place}].time_zone", str(error)))
    if problems:
        return problems
    try:
        upcoming_periods(rules, now_ms)
    except AlwaysQuiet as error:
        return [("", f"{error}; `detcloud pool drain` closes a pool")]
    return []


def with_quiet_periods(settings: PoolSettings, now: PoolSettings, now_ms: int) -> PoolSettings:
    """Return new settings of a pool with the periods of the new rules.

    Equal rules keep the periods of the present settings.

    Args:
        settings: the new settings.
        now: the present settings.
        now_ms: the time in epoch ms.
    """
    if settings.quiet_hours == now.quiet_hours:
        return settings
    if not settings.quiet_hours:
        return with_periods(settings, (), now_ms)
    # Few pools have quiet hours, and the import takes 30 ms (bench/cold_starts.py).
    from control_plane.quiet_times import upcoming_periods

    rules = settings.quiet_hours
    return with_periods(settings, upcoming_periods(rules, now_ms), now_ms)
