"""Queries of a pool's instances and of the offerings that instances are launched from."""

from control_plane.fleet import rows
from control_plane.fleet.records import ErrorKind, InstanceRow, InstanceState
from control_plane.queries.answer import Answer
from control_plane.services import Services

FAILED_BOOT_MS = 86_400_000
FAILED_BOOTS_MAX = 3
PAST_INSTANCES_MAX = 100


class InstanceView(Answer):
    """An instance of a pool.

    `id` is also the id of the instance's agent. `notice_ms` is the announced time at which the
    cloud takes the instance away; null without an announcement.
    """

    id: str
    instance_type: str
    zone: str
    market: str
    slots: int
    price_per_hour: float
    state: InstanceState
    launched_ms: int
    notice_ms: int | None
    reason: str


class OfferingView(Answer):
    """An offering of a pool, with prices.

    `slot_price_per_hour` is the price divided by the slots, to compare offerings and pools.
    """

    offering: str
    instance_type: str
    zone: str
    market: str
    slots: int
    price_per_hour: float
    slot_price_per_hour: float


class OfferingHealthView(Answer):
    """An offering with recent failed launches.

    `errors` counts the failures in a row; `kind` and `message` describe the last one. The
    provisioner skips the offering until `retry_ms`. From a `given_up` offering it launches only
    one instance at a time.
    """

    offering: str
    errors: int
    kind: ErrorKind | None
    message: str
    retry_ms: int
    given_up: bool


class FailedBoot(Answer):
    """An instance that ended before the agent enrolled.

    `boot_log` holds the last lines of the boot's output.
    """

    id: str
    instance_type: str
    ended_ms: int
    reason: str
    boot_log: str


class FleetView(Answer):
    """State of a pool's provisioning.

    `waits` says why waiting work gets no instance. `trouble` says why calls to the cloud fail.
    `warning` says what works with restrictions. They are empty if all is well. `offerings` lists
    the offerings with failures. `failed_boots` lists the latest failed boots, the latest first.
    """

    waits: str = ""
    trouble: str = ""
    warning: str = ""
    offerings: list[OfferingHealthView] = []
    failed_boots: list[FailedBoot] = []


def list_instances(services: Services, pool: str) -> list[InstanceView]:
    """Return the pool's instances that have not ended, sorted by id. Empty for an unknown pool."""
    return [_instance_answer(row) for row in rows.read_instances(services.table, pool)]


def list_offerings(services: Services, pool: str) -> list[OfferingView]:
    """Return the pool's cheapest offerings by price per slot, as of the last provisioner pass.

    Offerings with an unknown price come last, with a price of 0. A pass stores at most
    `provisioner.offerings.OFFERED_MAX` offerings. Empty before the pool's first pass, and for an
    unknown pool.
    """
    fleet = rows.read_fleet(services.table, pool)
    return [
        OfferingView(
            offering=offering.name,
            instance_type=offering.instance_type,
            zone=offering.zone,
            market=offering.market,
            slots=offering.slots,
            price_per_hour=offering.price_per_hour,
            slot_price_per_hour=offering.price_per_hour / max(1, offering.slots),
        )
        for offering in (() if fleet is None else fleet.offered)
    ]


def describe_fleet(services: Services, pool: str) -> FleetView:
    """Return the provisioning state of the pool; an empty state before the first pass.

    An unknown pool has the empty state, too.
    """
    row = rows.read_fleet(services.table, pool)
    if row is None:
        return FleetView()
    health = [
        OfferingHealthView(
            offering=name,
            errors=known.errors,
            kind=known.kind,
            message=known.message,
            retry_ms=known.retry_ms,
            given_up=known.given_up,
        )
        for name, known in sorted(row.health.items())
        if known.errors
    ]
    return FleetView(
        waits=row.waits,
        trouble=row.trouble,
        warning=row.warning,
        offerings=health,
        failed_boots=_failed_boots(services, pool),
    )


def _failed_boots(services: Services, pool: str) -> list[FailedBoot]:
    """Return the latest failed boots with a boot log, at most FAILED_BOOTS_MAX, latest first.

    Searches the pool's PAST_INSTANCES_MAX latest ended instances of the last day.
    """
    since_ms = services.now_ms() - FAILED_BOOT_MS
    past, _ = rows.read_past_instances(services.table, pool, since_ms, PAST_INSTANCES_MAX)
    failed = [
        FailedBoot(
            id=row.id,
            instance_type=row.offering.instance_type,
            ended_ms=row.ended_ms or 0,
            reason=row.reason,
            boot_log=row.boot_log,
        )
        for row in past
        if row.boot_log
    ]
    return failed[:FAILED_BOOTS_MAX]


def _instance_answer(row: InstanceRow) -> InstanceView:
    """Return the answer for an instance's row."""
    offering = row.offering
    return InstanceView(
        id=row.id,
        instance_type=offering.instance_type,
        zone=offering.zone,
        market=offering.market,
        slots=offering.slots,
        price_per_hour=offering.price_per_hour,
        state=row.state,
        launched_ms=row.launched_ms,
        notice_ms=row.notice_ms,
        reason=row.reason,
    )
