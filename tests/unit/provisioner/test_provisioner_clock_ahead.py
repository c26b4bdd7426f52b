"""A fleet after a pass with a clock a day ahead: what that wrote holds nothing up for a day."""

import pytest

from control_plane.fleet.records import ErrorKind, FleetRow, OfferingHealth
from control_plane.state.faults import Crash
from provisioner.clouds.fake.provider import FakeRules
from provisioner.model import ProvisionerSettings
from tests.simulation.fleet import POOL, SimulatedFleet, Work
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


def test_a_pass_that_breaks_off_leaves_no_time_without_passes_that_ends_tomorrow() -> None:
    settings = ProvisionerSettings("fake", max_instances=1, idle_ms_max=MINUTE_MS)
    simulation = SimulatedFleet(settings, FakeRules())
    simulation.pool.work = [Work(4, 10_000_000)]
    simulation.run(30)
    simulation.watched.crash_at = simulation.watched.calls + 1
    simulation.now_ms += 24 * 60 * MINUTE_MS
    with pytest.raises(Crash):
        simulation.reconciler.reconcile(POOL)
    simulation.now_ms -= 24 * 60 * MINUTE_MS
    simulation.pool.work.clear()
    # It is idle for a minute, then drained, ended and gone.
    simulation.run_until(simulation.is_empty, 120)


def test_an_offering_that_is_given_up_is_tried_again_within_an_hour() -> None:
    """A launch by a pass whose clock was ahead sets the time of the next one alone."""
    health = OfferingHealth(
        errors=9,
        kind=ErrorKind.CONFIGURATION,
        failed_ms=NOW_MS - 5,
        retry_ms=AHEAD_MS + 60 * MINUTE_MS,
        given_up=True,
    )
    kept = scale_plan(health={SMALL.name: health}).fleet.health[SMALL.name]
    assert (kept.failed_ms, kept.retry_ms) == (NOW_MS - 5, NOW_MS + 60 * MINUTE_MS)
