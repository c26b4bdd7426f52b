"""The keys, encoding and reading of fleet rows.

fleets                 the fleet of each pool that has or had instances, by pool
clouds                 the settings of each location of instances, for the orphan cleanup
instances#POOL         the pool's live instances, by id
past-instances#POOL    the pool's ended instances, by the time of their end
intents#POOL           the pool's open launch intents, by id
"""

import json
from typing import TypeVar

from control_plane.adapters import RecordCodec
from control_plane.fleet.records import (
    FleetRow,
    InstanceRow,
    InstanceState,
    IntentRow,
    instances_partition,
)
from control_plane.rows import fleet_rows
from control_plane.state.row_ranges import read_rows
from control_plane.state.table import Key, Page, Row, StateTable

FLEETS = fleet_rows.FLEET.partition
CLOUDS = fleet_rows.CLOUD.partition

R = TypeVar("R")

_FLEET = RecordCodec(fleet_rows.FLEET, FleetRow, exclude_defaults=True)
_INSTANCE = RecordCodec(fleet_rows.INSTANCE, InstanceRow, exclude_defaults=True)
_INTENT = RecordCodec(fleet_rows.INTENT, IntentRow, exclude_defaults=True)


def past_instances_partition(pool: str) -> str:
    """Return the partition of a pool's ended instances."""
    return fleet_rows.PAST_INSTANCE.partition_of(pool)


def intents_partition(pool: str) -> str:
    """Return the partition of a pool's open launch intents."""
    return fleet_rows.INTENT.partition_of(pool)


def instance_key(row: InstanceRow) -> Key:
    """Return the key of an instance's row.

    A live instance is stored by id, an ended instance by the time of its end.
    """
    if row.state is InstanceState.ENDED:
        return Key(past_instances_partition(row.pool), f"{row.ended_ms or 0:015d}.{row.id}")
    return Key(instances_partition(row.pool), row.id)


def encode_row(row: FleetRow | InstanceRow | IntentRow, before: bytes | None = None) -> bytes:
    """Encode a record as the JSON body of a row, without default values.

    Args:
        row: the record.
        before: the body of the row that is replaced, with fields of newer versions to keep.
    """
    match row:
        case FleetRow():
            return _FLEET.encode(row, before)
        case InstanceRow():
            return _INSTANCE.encode(row, before)
        case IntentRow():
            return _INTENT.encode(row, before)


def decode_fleet(row: Row) -> FleetRow:
    """Decode a fleet's row. Raises ValueError for an invalid body."""
    return _FLEET.decode(row.body)


def decode_instance(row: Row) -> InstanceRow:
    """Decode an instance's row. Raises ValueError for an invalid body."""
    return _INSTANCE.decode(row.body)


def decode_intent(row: Row) -> IntentRow:
    """Decode an intent's row. Raises ValueError for an invalid body."""
    return _INTENT.decode(row.body)


def read_fleet(table: StateTable, pool: str) -> FleetRow | None:
    """Return a pool's fleet. Return None if the pool has no fleet row."""
    row = table.get(Key(FLEETS, pool))
    return None if row is None else decode_fleet(row)


def launched_provider_type(table: StateTable, pool: str) -> str:
    """Return the provider type that launched a pool's instances, such as `aws`.

    The provisioner records the type before the first launch. Return "" without a record.
    """
    fleet = read_fleet(table, pool)
    return str(json.loads(fleet.provider)["kind"]) if fleet and fleet.provider else ""


def read_fleets(table: StateTable) -> list[FleetRow]:
    """Return all fleets in the order of pool names, including fleets of removed pools."""
    return [decode_fleet(row) for row in read_rows(table, FLEETS)]


def read_instances(table: StateTable, pool: str) -> list[InstanceRow]:
    """Return the live instances of a pool, in the order of instance ids."""
    return [decode_instance(row) for row in read_rows(table, instances_partition(pool))]


def has_instance(table: StateTable, name: str) -> bool:
    """Whether any pool has a live instance of this name. Reads one row per pool."""
    pools = (row.key.sort for row in read_rows(table, FLEETS))
    return any(table.get(Key(instances_partition(pool), name)) is not None for pool in pools)


def read_intents(table: StateTable, pool: str) -> list[IntentRow]:
    """Return a pool's open launch intents, the oldest first."""
    return [decode_intent(row) for row in read_rows(table, intents_partition(pool))]


def read_past_instances(
    table: StateTable, pool: str, since_ms: int = 0, limit: int = 1000
) -> tuple[list[InstanceRow], bool]:
    """Return up to `limit` instances that ended at or after `since_ms`, the latest first.

    The second value is whether the pool has more of them.
    """
    page: Page = table.query(
        past_instances_partition(pool), f"{since_ms:015d}", "\x7f", limit=limit, descending=True
    )
    return [decode_instance(row) for row in page.rows], page.next_sort is not None
