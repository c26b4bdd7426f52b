"""The rows of fleets: their keys, and how they are read and written.

fleets            one row per pool that has instances, or may get some
clouds            one row per location that instances were ever launched at, for the orphan cleanup
instances#POOL    its instances, by id; those that have ended are in `past-instances#POOL`, by
                  the time of their end
intents#POOL      launches whose answer is not known yet
"""

import json
from collections.abc import Iterator
from typing import TypeVar

from control_plane.adapters import lazy_adapter
from control_plane.fleet.records import (
    FleetRow,
    InstanceRow,
    InstanceState,
    IntentRow,
    instances_partition,
)
from control_plane.state.table import Key, Page, Row, StateTable

FLEETS = "fleets"
CLOUDS = "clouds"

R = TypeVar("R")

_FLEET = lazy_adapter(FleetRow)
_INSTANCE = lazy_adapter(InstanceRow)
_INTENT = lazy_adapter(IntentRow)


def past_instances_partition(pool: str) -> str:
    """The partition of a pool's instances that have ended."""
    return f"past-instances#{pool}"


def intents_partition(pool: str) -> str:
    """The partition of a pool's launches under way."""
    return f"intents#{pool}"


def instance_key(row: InstanceRow) -> Key:
    """The key of an instance's row."""
    if row.state is InstanceState.ENDED:
        return Key(past_instances_partition(row.pool), f"{row.ended_ms or 0:015d}.{row.id}")
    return Key(instances_partition(row.pool), row.id)


def encode_row(row: FleetRow | InstanceRow | IntentRow) -> bytes:
    """Encode a row's body."""
    match row:
        case FleetRow():
            return _FLEET().dump_json(row, exclude_defaults=True)
        case InstanceRow():
            return _INSTANCE().dump_json(row, exclude_defaults=True)
        case IntentRow():
            return _INTENT().dump_json(row, exclude_defaults=True)


def decode_fleet(row: Row) -> FleetRow:
    """Decode a fleet's row; ValueError for an invalid body."""
    return _FLEET().validate_json(row.body)


def decode_instance(row: Row) -> InstanceRow:
    """Decode an instance's row; ValueError for an invalid body."""
    return _INSTANCE().validate_json(row.body)


def decode_intent(row: Row) -> IntentRow:
    """Decode an intent's row; ValueError for an invalid body."""
    return _INTENT().validate_json(row.body)


def read_fleet(table: StateTable, pool: str) -> FleetRow | None:
    """Return a pool's fleet, None where there never was one."""
    row = table.get(Key(FLEETS, pool))
    return None if row is None else decode_fleet(row)


def launched_provider_type(table: StateTable, pool: str) -> str:
    """Return the type of the provider that launches a pool's instances, as the provisioner has
    recorded it before the first of them; "" for a pool that never had any.
    """
    fleet = read_fleet(table, pool)
    return str(json.loads(fleet.provider)["kind"]) if fleet and fleet.provider else ""


def read_fleets(table: StateTable) -> list[FleetRow]:
    """Return all fleets, by their pools, those of removed pools among them."""
    return [decode_fleet(row) for row in read_rows(table, FLEETS)]


def read_instances(table: StateTable, pool: str) -> list[InstanceRow]:
    """Return the instances of a pool that have not ended, by id."""
    return [decode_instance(row) for row in read_rows(table, instances_partition(pool))]


def has_instance(table: StateTable, name: str) -> bool:
    """Whether any pool has that instance, and it has not ended."""
    pools = (row.key.sort for row in read_rows(table, FLEETS))
    return any(table.get(Key(instances_partition(pool), name)) is not None for pool in pools)


def read_intents(table: StateTable, pool: str) -> list[IntentRow]:
    """Return a pool's launches under way, the oldest first."""
    return [decode_intent(row) for row in read_rows(table, intents_partition(pool))]


def read_past_instances(
    table: StateTable, pool: str, since_ms: int = 0, limit: int = 1000
) -> tuple[list[InstanceRow], bool]:
    """Return instances that ended at or after `since_ms`, the latest first, and whether there are
    more.
    """
    page: Page = table.query(
        past_instances_partition(pool), f"{since_ms:015d}", "\x7f", limit=limit, descending=True
    )
    return [decode_instance(row) for row in page.rows], page.next_sort is not None


def read_rows(
    table: StateTable, partition: str, first: str | None = " ", last: str = "\x7f"
) -> Iterator[Row]:
    """Yield every row of a partition, or of a range of it, page by page."""
    while first is not None:
        page = table.query(partition, first, last)
        yield from page.rows
        first = page.next_sort
