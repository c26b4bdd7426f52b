"""The rows of fleets: where they are, and how they are read and written.

fleets            one row per pool that has instances, or may get some
clouds            one row per place that instances were ever launched at, for the sweep
instances#POOL    its instances, by id; those that have ended are in `past-instances#POOL`, by
                  the time of their end
intents#POOL      launches whose answer is not known yet
"""

from collections.abc import Iterator
from typing import TypeVar

from control_plane.adapters import adapter
from control_plane.fleet.records import (
    FleetRow,
    InstanceRow,
    InstanceState,
    IntentRow,
    instances_of,
)
from control_plane.state.table import Key, Page, Row, StateTable

FLEETS = "fleets"
CLOUDS = "clouds"

R = TypeVar("R")

_FLEET = adapter(FleetRow)
_INSTANCE = adapter(InstanceRow)
_INTENT = adapter(IntentRow)


def past_instances_of(pool: str) -> str:
    """The partition of those that have."""
    return f"past-instances#{pool}"


def intents_of(pool: str) -> str:
    """The partition of a pool's launches under way."""
    return f"intents#{pool}"


def instance_key(row: InstanceRow) -> Key:
    """Where an instance's row is."""
    if row.state is InstanceState.ENDED:
        return Key(past_instances_of(row.pool), f"{row.ended_ms or 0:015d}.{row.id}")
    return Key(instances_of(row.pool), row.id)


def encode(row: FleetRow | InstanceRow | IntentRow) -> bytes:
    """A row's body."""
    match row:
        case FleetRow():
            return _FLEET().dump_json(row, exclude_defaults=True)
        case InstanceRow():
            return _INSTANCE().dump_json(row, exclude_defaults=True)
        case IntentRow():
            return _INTENT().dump_json(row, exclude_defaults=True)


def decode_fleet(row: Row) -> FleetRow:
    """The way back; ValueError for a body that is none."""
    return _FLEET().validate_json(row.body)


def decode_instance(row: Row) -> InstanceRow:
    """The way back; ValueError for a body that is none."""
    return _INSTANCE().validate_json(row.body)


def decode_intent(row: Row) -> IntentRow:
    """The way back; ValueError for a body that is none."""
    return _INTENT().validate_json(row.body)


def fleet_of(table: StateTable, pool: str) -> FleetRow | None:
    """A pool's fleet, None where there never was one."""
    row = table.get(Key(FLEETS, pool))
    return None if row is None else decode_fleet(row)


def fleets(table: StateTable) -> list[FleetRow]:
    """All fleets, by their pools, those of removed pools among them."""
    return [decode_fleet(row) for row in read_all(table, FLEETS)]


def instances(table: StateTable, pool: str) -> list[InstanceRow]:
    """The instances of a pool that have not ended, by id."""
    return [decode_instance(row) for row in read_all(table, instances_of(pool))]


def has_instance(table: StateTable, name: str) -> bool:
    """Whether any pool has that instance, and it has not ended."""
    pools = (row.key.sort for row in read_all(table, FLEETS))
    return any(table.get(Key(instances_of(pool), name)) is not None for pool in pools)


def intents(table: StateTable, pool: str) -> list[IntentRow]:
    """A pool's launches under way, the oldest first."""
    return [decode_intent(row) for row in read_all(table, intents_of(pool))]


def past_instances(
    table: StateTable, pool: str, since_ms: int = 0, limit: int = 1000
) -> tuple[list[InstanceRow], bool]:
    """Instances that ended at or after `since_ms`, the latest first, and whether there are more."""
    page: Page = table.query(
        past_instances_of(pool), f"{since_ms:015d}", "\x7f", limit=limit, descending=True
    )
    return [decode_instance(row) for row in page.rows], page.next_sort is not None


def read_all(
    table: StateTable, partition: str, first: str | None = " ", last: str = "\x7f"
) -> Iterator[Row]:
    """Every row of a partition, or of a range of it, page by page."""
    while first is not None:
        page = table.query(partition, first, last)
        yield from page.rows
        first = page.next_sort
