"""An offering is tried again within an hour after any failure, and not too often."""

from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from control_plane.fleet.records import ErrorKind, InstanceState, OfferingHealth
from provisioner import offerings
from provisioner.model import InstanceStatus, ObservedInstance
from tests.unit.provisioner.fleet_table import (
    NOW_MS,
    SPOT,
    instance,
    job_demand,
    launch_counts,
    scale_plan,
)

HOUR_MS = 3_600_000


class Event(NamedTuple):
    """An event of an offering: a failure of a kind, `LAUNCH` or `CONNECTION`.

    `jitter` is a drawn number from 0 to 1.
    """

    what: str
    draw: float


failures = st.sampled_from([str(kind) for kind in ErrorKind])
events = st.lists(
    st.builds(
        Event, st.one_of(failures, st.just("LAUNCH"), st.just("CONNECTION")), st.floats(0, 0.99)
    ),
    max_size=40,
)
# At least half of each back-off passes, from the first to the ceiling, which bounds the attempts
# in an hour:
# capacity 0, 15, 45, 105, 225, 465 s and each 300 s: 6 + (3600 - 465) / 300 = 16.45, so 17.
# throttled 0, 2.5, 7.5, 17.5, 37.5, 77.5 s and each 60 s: 6 + (3600 - 77.5) / 60 = 64.7, so 65.
# quota 0, 60, 180, 420, 900 s and each 900 s: 5 + 2700 / 900 = 8.
# auth, configuration 0, 30, 90, 210, 450, 930 s and each 900 s: 6 + 2670 / 900 = 8.97, so 9.
# boot as capacity; unknown 0, 7.5, 22.5, 52.5, 112.5, 232.5, 472.5 s and each 300 s: 17.4, so 18.
ATTEMPTS_MAX = {
    ErrorKind.CAPACITY: 17,
    ErrorKind.THROTTLED: 65,
    ErrorKind.QUOTA: 8,
    ErrorKind.AUTH: 9,
    ErrorKind.CONFIGURATION: 9,
    ErrorKind.BOOT: 17,
    ErrorKind.UNKNOWN: 18,
}


@settings(max_examples=200, deadline=None)
@given(events, st.integers(0, 10), st.integers(0, HOUR_MS))
def test_offering_is_closed_for_at_most_an_hour(
    happened: list[Event], limit: int, step_ms: int
) -> None:
    health, now_ms = offerings.FRESH, NOW_MS
    for event in happened:
        health = _health_after(health, event, limit, now_ms)
        assert health.retry_ms - now_ms <= HOUR_MS
        now_ms += step_ms
    plan = scale_plan(
        [],
        job_demand(4),
        offerings=(SPOT,),
        health={SPOT.name: _health_an_hour_later(health, now_ms)},
    )
    assert launch_counts(plan) == {SPOT.name: 1}


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(list(ErrorKind)), st.lists(st.floats(0, 0.99), min_size=1, max_size=70))
def test_attempts_per_hour_are_bounded(kind: ErrorKind, draws: list[float]) -> None:
    health, now_ms, attempts = offerings.FRESH, NOW_MS, 0
    while now_ms < NOW_MS + HOUR_MS:
        draw = draws[attempts % len(draws)]
        health = _health_after(health, Event(kind, draw), 0, now_ms)
        attempts += 1
        now_ms = health.retry_ms
    assert attempts <= ATTEMPTS_MAX[kind]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 0.99), min_size=1, max_size=9), st.integers(1, 10))
def test_offering_that_never_boots_costs_two_instances_an_hour(
    draws: list[float], limit: int
) -> None:
    health = OfferingHealth(faults=limit - 1)
    now_ms, launches = NOW_MS, []
    for draw in draws:
        health = _health_after(health, Event("LAUNCH", draw), limit, now_ms)
        launches.append(now_ms)
        # The instance ends immediately, which is the worst case.
        health = _health_after(health, Event(ErrorKind.BOOT, draw), limit, now_ms)
        assert health.given_up
        now_ms = health.retry_ms
    for begin_ms in launches:
        assert sum(begin_ms <= launch < begin_ms + HOUR_MS for launch in launches) <= 2


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["boot", "capacity", "notice"]), max_size=25))
def test_failed_boots_of_a_batch_count_as_a_single_error(happened: list[str]) -> None:
    health = offerings.FRESH
    for place, event in enumerate(happened):
        now_ms = NOW_MS
        row = instance(
            f"i-{place}",
            offering=SPOT,
            state=InstanceState.STARTING,
            connected_ms=None,
            launched_ms=now_ms - HOUR_MS,
            notice_ms=now_ms - 60_000 if event == "notice" else None,
        )
        if event == "capacity":
            health = _health_after(health, Event(ErrorKind.CAPACITY, 0.5), 10, now_ms)
            continue
        pair = (row, ObservedInstance(InstanceStatus.TERMINATED))
        plan = scale_plan([pair], offerings=(SPOT,), health={SPOT.name: health})
        health = plan.fleet.health[SPOT.name]
    assert health.faults == int("boot" in happened)
    assert not health.given_up


def _health_after(health: OfferingHealth, event: Event, limit: int, now_ms: int) -> OfferingHealth:
    if event.what == "LAUNCH":
        return offerings.health_after_launch(health, now_ms)
    if event.what == "CONNECTION":
        return offerings.health_after_connection(health)
    failure = offerings.Failure(ErrorKind(event.what), "no", now_ms)
    if failure.kind is ErrorKind.BOOT:
        return offerings.health_after_failed_boot(health, failure, limit, lambda: event.draw)
    return offerings.health_after_failure(health, failure, limit, lambda: event.draw)


def _health_an_hour_later(health: OfferingHealth, now_ms: int) -> OfferingHealth:
    """Return the health as if an hour passed from `now_ms` to the moment of the plan."""
    retry_ms = health.retry_ms - (now_ms + HOUR_MS - NOW_MS)
    return OfferingHealth(
        health.errors, health.faults, health.kind, health.message, 0, retry_ms, health.given_up
    )
