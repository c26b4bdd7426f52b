"""A pool's instances as the API shows them, and what their offerings were good for lately."""

from control_plane.api.bodies import Body
from control_plane.api.services import Services
from control_plane.fleet import rows
from control_plane.fleet.records import ErrorKind, InstanceRow, InstanceState


class InstanceView(Body):
    """`id` is also its agent's; `notice_ms`: when the cloud takes it away, as announced."""

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


class OfferingHealthView(Body):
    """An offering that failed lately: how often in a row, why, and when it is tried again."""

    offering: str
    errors: int
    kind: ErrorKind | None
    message: str
    retry_ms: int
    given_up: bool


class FleetView(Body):
    """`waits`: why work that waits gets no instance; `trouble`: why the cloud cannot be asked."""

    waits: str = ""
    trouble: str = ""
    offerings: list[OfferingHealthView] = []


def instances(services: Services, pool: str) -> list[InstanceView]:
    """Those that have not ended, by id."""
    return [_shown(row) for row in rows.instances(services.table, pool)]


def fleet(services: Services, pool: str) -> FleetView:
    """What is said of the pool's instances as a whole."""
    row = rows.fleet_of(services.table, pool)
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
    return FleetView(waits=row.waits, trouble=row.trouble, offerings=health)


def _shown(row: InstanceRow) -> InstanceView:
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
