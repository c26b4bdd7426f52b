"""The instances of a pool, and the health of the offerings that they come from."""

from control_plane.fleet import rows
from control_plane.fleet.records import ErrorKind, InstanceRow, InstanceState
from control_plane.queries.answer import Answer
from control_plane.services import Services

FAILED_BOOT_MS = 86_400_000
FAILED_BOOTS_MAX = 3
PAST_INSTANCES_MAX = 100


class InstanceView(Answer):
    """An instance. `id` is also its agent's; `notice_ms`: when the cloud takes it away, as
    announced.
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
    """An offering of a pool with its price: what a slot costs says which pool is cheaper."""

    offering: str
    instance_type: str
    zone: str
    market: str
    slots: int
    price_per_hour: float
    slot_price_per_hour: float


class OfferingHealthView(Answer):
    """An offering that failed lately: how often in a row, why, and when it is tried again."""

    offering: str
    errors: int
    kind: ErrorKind | None
    message: str
    retry_ms: int
    given_up: bool


class FailedBoot(Answer):
    """An instance that ended before its agent came: why, and the last lines that it wrote."""

    id: str
    instance_type: str
    ended_ms: int
    reason: str
    boot_log: str


class FleetView(Answer):
    """The instances of a pool as a whole. `waits`: why work that waits gets no instance; `trouble`:
    why the cloud cannot be asked; `failed_boots`: the last ones, the latest first.
    """

    waits: str = ""
    trouble: str = ""
    offerings: list[OfferingHealthView] = []
    failed_boots: list[FailedBoot] = []


def list_instances(services: Services, pool: str) -> list[InstanceView]:
    """List the pool's instances that have not ended, by id."""
    return [_instance_answer(row) for row in rows.read_instances(services.table, pool)]


def list_offerings(services: Services, pool: str) -> list[OfferingView]:
    """List the cheapest offerings of the pool by what a slot costs, as its last pass saw them: none
    before its first.
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
    """Describe the pool's instances as a whole."""
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
        offerings=health,
        failed_boots=_failed_boots(services, pool),
    )


def _failed_boots(services: Services, pool: str) -> list[FailedBoot]:
    """The pool's failed boots of the last day whose logs are known."""
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
