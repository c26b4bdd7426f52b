"""A fleet after a pass with a clock a day ahead: what that wrote holds nothing up for a day."""

from control_plane.fleet.records import ErrorKind, FleetRow, OfferingHealth
from tests.unit.provisioner.fleet_table import (
    IDLE,
    MINUTE_MS,
    NOW_MS,
    SMALL,
    idle_instance,
    running_with,
    scale_plan,
)

AHEAD_MS = NOW_MS + 24 * 60 * MINUTE_MS


def test_an_empty_bucket_of_terminations_fills_from_now_on() -> None:
    fleet = FleetRow("p", tokens=0.0, tokens_ms=AHEAD_MS, passed_ms=NOW_MS - 5_000)
    plan = scale_plan([(idle_instance("a", 30), running_with(IDLE))], fleet=fleet)
    assert (plan.fleet.tokens, plan.fleet.tokens_ms) == (0.0, NOW_MS)


def test_a_back_off_lasts_as_long_as_it_was_to_last() -> None:
    health = OfferingHealth(
        errors=1, kind=ErrorKind.CAPACITY, failed_ms=AHEAD_MS, retry_ms=AHEAD_MS + 7_000
    )
    kept = scale_plan(health={SMALL.name: health}).fleet.health[SMALL.name]
    assert (kept.failed_ms, kept.retry_ms) == (NOW_MS, NOW_MS + 7_000)


def test_an_interruption_is_of_now() -> None:
    health = OfferingHealth(interrupted_ms=AHEAD_MS)
    kept = scale_plan(health={SMALL.name: health}).fleet.health[SMALL.name]
    assert kept.interrupted_ms == NOW_MS
