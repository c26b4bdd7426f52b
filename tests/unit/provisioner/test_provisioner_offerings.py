"""The order of offerings, and the health of failed offerings."""

from dataclasses import replace

from control_plane.fleet.records import ErrorKind, OfferingHealth
from provisioner.model import ProvisionerSettings
from provisioner.offerings import (
    FRESH,
    OFFERED_MAX,
    Failure,
    cheapest_offerings,
    health_after_connection,
    health_after_failed_boot,
    health_after_failure,
    health_after_launch,
    offerings_with_prices,
    supply_gap,
)
from tests.unit.provisioner.fleet_table import (
    BIG,
    MINUTE_MS,
    NOW_MS,
    SMALL,
    SPOT,
    SPOT_B,
    instance,
    job_demand,
    launch_counts,
    running_with,
    scale_plan,
    starting_instance,
)

ALL = (SMALL, SPOT, SPOT_B)
SETTINGS = ProvisionerSettings("fake")


def exhausted_health(
    kind: ErrorKind = ErrorKind.CAPACITY, *, retry_ms: int = NOW_MS + 40_000, given_up: bool = False
) -> OfferingHealth:
    return OfferingHealth(2, 2, kind, "none is left", NOW_MS - 5_000, retry_ms, given_up)


def _health_after_failures(
    kind: ErrorKind, times: int, *, draw: float = 1.0, limit: int = 10
) -> OfferingHealth:
    health = FRESH
    after = health_after_failed_boot if kind is ErrorKind.BOOT else health_after_failure
    for _ in range(times):
        health = after(health, Failure(kind, "no", NOW_MS), limit, lambda: draw)
    return health


def test_missing_price_is_replaced_by_the_price_of_the_cloud() -> None:
    cheap, free = replace(SMALL, price_per_hour=0.5), replace(SPOT, price_per_hour=0.0)
    offerings = (SMALL, SPOT)
    # The order is that of the settings; a price that the cloud lacks is 0.
    assert offerings_with_prices((free, cheap), offerings) == (SPOT, cheap)
    assert offerings_with_prices((replace(free, name="other"),), offerings)[0].price_per_hour == 0.0
    assert offerings_with_prices((), offerings) == offerings


def test_spot_offerings_come_first() -> None:
    assert launch_counts(scale_plan([], job_demand(4), offerings=ALL)) == {SPOT.name: 1}


def test_skips_an_exhausted_zone_until_its_back_off_ends() -> None:
    health = {SPOT.name: exhausted_health()}
    plan = scale_plan([], job_demand(4), offerings=ALL, health=health)
    assert launch_counts(plan) == {SPOT_B.name: 1}
    health = {SPOT.name: exhausted_health(retry_ms=NOW_MS)}
    plan = scale_plan([], job_demand(4), offerings=ALL, health=health)
    assert launch_counts(plan) == {SPOT.name: 1}


def test_skips_a_zone_without_quota() -> None:
    # Some clouds report an exhausted zone as a quota error: the next zone is tried, too.
    health = {SPOT.name: exhausted_health(ErrorKind.QUOTA)}
    plan = scale_plan([], job_demand(4), offerings=ALL, health=health)
    assert launch_counts(plan) == {SPOT_B.name: 1}


def test_falls_back_to_on_demand_if_allowed() -> None:
    health = {SPOT.name: exhausted_health(), SPOT_B.name: exhausted_health(ErrorKind.QUOTA)}
    plan = scale_plan([], job_demand(4), offerings=ALL, health=health)
    assert launch_counts(plan) == {SMALL.name: 1}
    plan = scale_plan([], job_demand(4), offerings=ALL, health=health, on_demand_fallback=False)
    assert plan.launches == ()
    assert plan.fleet.waits == (
        f"no instance can be launched: {SPOT.name}: capacity: none is left (tried again in 40 s); "
        f"{SPOT_B.name}: quota: none is left (tried again in 40 s)"
    )


def test_pool_without_spot_offerings_uses_on_demand() -> None:
    plan = scale_plan([], job_demand(4), on_demand_fallback=False)
    assert launch_counts(plan) == {SMALL.name: 1}


def test_on_demand_base_moves_spot_launches() -> None:
    # 16 slots need 4 instances, ceil(0.25 * 4) = 1 on demand.
    plan = scale_plan([], job_demand(*[4] * 4), offerings=ALL, on_demand_base=0.25)
    assert launch_counts(plan) == {SMALL.name: 1, SPOT.name: 3}
    # One on-demand instance exists: ceil(0.25 * (1 + 3)) - 1 = 0.
    fleet = [(instance("a"), running_with())]
    plan = scale_plan(fleet, job_demand(4, 4, 4), offerings=ALL, on_demand_base=0.25)
    assert launch_counts(plan) == {SPOT.name: 3}


def test_unavailable_on_demand_base_stays_spot() -> None:
    health = {SMALL.name: exhausted_health()}
    plan = scale_plan([], job_demand(4), offerings=ALL, health=health, on_demand_base=1.0)
    assert launch_counts(plan) == {SPOT.name: 1}


def test_request_uses_the_first_offering_that_holds_it() -> None:
    # Requests for 3 slots fit on a small instance: three of them need 3 instances. 6 slots neither
    # fit on a small instance nor fill several (6 % 4 = 2), so they need a big one.
    plan = scale_plan([], job_demand(3, 3, 3, 6), offerings=(SPOT, BIG))
    assert launch_counts(plan) == {SPOT.name: 3, BIG.name: 1}


def test_slots_of_a_starting_instance_count() -> None:
    # Of 16 slots, the starting instance serves 8. The other 8 need two instances of 4.
    fleet = [(starting_instance("a", offering=BIG), running_with(None))]
    assert launch_counts(scale_plan(fleet, job_demand(*[4] * 4))) == {SMALL.name: 2}


def test_throttling_stops_all_offerings() -> None:
    health = {SPOT.name: exhausted_health(ErrorKind.THROTTLED)}
    assert scale_plan([], job_demand(4), offerings=ALL, health=health).launches == ()


def test_back_off_doubles_to_a_limit_with_half_random() -> None:
    # 30 s, 60 s, 120 s ... at most 10 minutes; half of each is fixed and half random.
    pauses = [_health_after_failures(ErrorKind.CAPACITY, n).retry_ms - NOW_MS for n in (1, 2, 3, 6)]
    assert pauses == [30_000, 60_000, 120_000, 10 * MINUTE_MS]
    assert _health_after_failures(ErrorKind.CAPACITY, 3, draw=0.5).retry_ms - NOW_MS == 90_000
    assert _health_after_failures(ErrorKind.CAPACITY, 3, draw=0.0).retry_ms - NOW_MS == 60_000


def test_transient_errors_never_give_up() -> None:
    assert not _health_after_failures(ErrorKind.CAPACITY, 50).given_up
    assert not _health_after_failures(ErrorKind.THROTTLED, 50).given_up
    quota = _health_after_failures(ErrorKind.QUOTA, 50)
    # The ceiling of a quota is half an hour.
    assert (quota.given_up, quota.retry_ms - NOW_MS) == (False, 30 * MINUTE_MS)


def test_gives_up_at_the_error_limit() -> None:
    for kind in (ErrorKind.AUTH, ErrorKind.CONFIGURATION, ErrorKind.BOOT):
        assert not _health_after_failures(kind, 9).given_up
        health = _health_after_failures(kind, 10)
        assert (health.given_up, health.retry_ms - NOW_MS) == (True, 60 * MINUTE_MS)
        # At least half an hour for any random number.
        assert _health_after_failures(kind, 10, draw=0.0).retry_ms - NOW_MS == 30 * MINUTE_MS
    assert not _health_after_failures(ErrorKind.AUTH, 50, limit=0).given_up


def test_given_up_offering_is_reported_and_probed() -> None:
    health = {SMALL.name: exhausted_health(ErrorKind.BOOT, given_up=True)}
    plan = scale_plan([], job_demand(4, 4, 4), health=health)
    assert plan.launches == ()
    assert plan.fleet.waits == (
        f"no instance can be launched: {SMALL.name}: boot: none is left "
        "(given up after 2 errors; one instance is tried in 40 s)"
    )
    health = {SMALL.name: exhausted_health(ErrorKind.BOOT, retry_ms=NOW_MS, given_up=True)}
    plan = scale_plan([], job_demand(4, 4, 4), health=health)
    assert launch_counts(plan) == {SMALL.name: 1}
    assert plan.fleet.waits == (
        f"{SMALL.name} failed 2 times: one instance is launched as a test before more"
    )


def test_probe_stays_alone_until_its_agent_enrols() -> None:
    given_up = _health_after_failures(ErrorKind.BOOT, 10)
    later_ms = given_up.retry_ms + 5_000
    after = health_after_launch(given_up, later_ms)
    # The probe period is an hour.
    assert (after.given_up, after.retry_ms - later_ms) == (True, 60 * MINUTE_MS)
    assert health_after_connection(after) == FRESH


def test_launch_clears_errors_and_connection_clears_faults() -> None:
    health = _health_after_failures(ErrorKind.AUTH, 3)
    after = health_after_launch(health, NOW_MS)
    assert (after.errors, after.faults, after.kind) == (0, 3, None)
    assert health_after_connection(after) == FRESH


def test_launch_keeps_failed_boots() -> None:
    health = _health_after_failures(ErrorKind.BOOT, 3)
    assert health_after_launch(health, NOW_MS) == health


def _gap(
    health: dict[str, OfferingHealth], settings: ProvisionerSettings = SETTINGS
) -> tuple[str, int]:
    return supply_gap(settings, (SMALL, SPOT), health, NOW_MS)


def test_supply_gap_if_every_offering_is_scarce() -> None:
    later = exhausted_health(ErrorKind.QUOTA, retry_ms=NOW_MS + 50_000)
    closed = {SMALL.name: later, SPOT.name: exhausted_health()}
    why = f"no offering has capacity or quota; {SPOT.name}: none is left"
    assert _gap(closed) == (why, NOW_MS + 40_000)
    # Without a back-off, there is no gap.
    assert _gap(closed | {SPOT.name: exhausted_health(retry_ms=NOW_MS)}) == ("", 0)
    assert _gap({SPOT.name: exhausted_health()}) == ("", 0)
    # Only errors of capacity and quota count as lack of supply.
    assert _gap(closed | {SPOT.name: exhausted_health(ErrorKind.BOOT)}) == ("", 0)
    assert supply_gap(SETTINGS, (), closed, NOW_MS) == ("", 0)


def test_supply_gap_ignores_on_demand_without_fallback() -> None:
    settings = replace(SETTINGS, on_demand_fallback=False)
    gap = _gap({SPOT.name: exhausted_health()}, settings)
    assert gap == (
        f"no offering has capacity or quota; {SPOT.name}: none is left",
        NOW_MS + 40_000,
    )


def test_cheapest_offerings_are_sorted_by_slot_price() -> None:
    # Per slot: 8.0 / 8 = 1, 4.0 / 4 = 1, 1.0 / 4 = 0.25; equal prices are sorted by name.
    unknown = replace(SPOT_B, price_per_hour=0.0)
    assert cheapest_offerings((unknown, SMALL, BIG, SPOT)) == (SPOT, BIG, SMALL, unknown)
    many = tuple(replace(SPOT, name=f"{n:03}", price_per_hour=n) for n in range(1, 100))
    assert cheapest_offerings(many[::-1]) == many[:OFFERED_MAX]
