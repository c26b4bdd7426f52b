"""A fleet after a pass with a clock a day ahead: future times in rows delay nothing."""

import pytest

from control_plane.fleet.records import ErrorKind, FleetRow, OfferingHealth
from provisioner.clouds.fake.provider import FakeRules
from provisioner.model import ProvisionerSettings
from simulator.faults.table_faults import Crash
from simulator.stepped.scripted_pool import Work
from simulator.stepped.small_search import POOL
from simulator.stepped.stepped_fleet import FakeCloudFleet
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


def test_empty_token_bucket_refills_from_now() -> None:
    fleet = FleetRow("p", tokens=0.0, tokens_ms=AHEAD_MS, passed_ms=NOW_MS - 5_000)
    plan = scale_plan([(idle_instance("a", 30), running_with(IDLE))], fleet=fleet)
    assert (plan.fleet.tokens, plan.fleet.tokens_ms) == (0.0, NOW_MS)


def test_back_off_keeps_its_length() -> None:
    health = OfferingHealth(
        errors=1, kind=ErrorKind.CAPACITY, failed_ms=AHEAD_MS, retry_ms=AHEAD_MS + 7_000
    )
    kept = scale_plan(health={SMALL.name: health}).fleet.health[SMALL.name]
    assert (kept.failed_ms, kept.retry_ms) == (NOW_MS, NOW_MS + 7_000)


def test_future_interruption_becomes_the_present_time() -> None:
    health = OfferingHealth(interrupted_ms=AHEAD_MS)
    kept = scale_plan(health={SMALL.name: health}).fleet.health[SMALL.name]
    assert kept.interrupted_ms == NOW_MS


def test_crashed_pass_leaves_no_future_resume_time() -> None:
    settings = ProvisionerSettings("fake", max_instances=1, idle_ms_max=MINUTE_MS)
    simulation = FakeCloudFleet(settings, FakeRules())
    simulation.pool.work = [Work(4, 10_000_000)]
    simulation.run(30)
    simulation.watched.crash_at = simulation.watched.calls + 1
    simulation.now_ms += 24 * 60 * MINUTE_MS
    with pytest.raises(Crash):
        simulation.reconciler.reconcile(POOL)
    simulation.now_ms -= 24 * 60 * MINUTE_MS
    simulation.pool.work.clear()
    # The instance is idle for a minute, then drained, terminated and gone.
    simulation.run_until(simulation.is_empty, 120)


def test_given_up_offering_is_retried_within_an_hour() -> None:
    # A launch by a pass with a clock ahead moves only the time of the next attempt.
    health = OfferingHealth(
        errors=9,
        kind=ErrorKind.CONFIGURATION,
        failed_ms=NOW_MS - 5,
        retry_ms=AHEAD_MS + 60 * MINUTE_MS,
        given_up=True,
    )
    kept = scale_plan(health={SMALL.name: health}).fleet.health[SMALL.name]
    assert (kept.failed_ms, kept.retry_ms) == (NOW_MS - 5, NOW_MS + 60 * MINUTE_MS)
