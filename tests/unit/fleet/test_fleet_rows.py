"""Stored rows of instances and fleets."""

from control_plane.fleet.records import FleetRow, InstanceRow, InstanceState, Market, Offering
from control_plane.fleet.rows import FLEETS, encode_row, has_instance, instance_key, read_fleet
from control_plane.state.memory import MemoryTable
from control_plane.state.table import Expect, Key, Put

SMALL = Offering("small", "small", "", Market.SPOT, 1)


def test_has_instance_until_the_instance_ends() -> None:
    table = MemoryTable()
    for pool in ("cpus", "gpus"):
        body = encode_row(FleetRow(pool))
        table.commit((Put(Key(FLEETS, pool), 1, body, Expect.ABSENT),))
    for name, state in (("i-1", InstanceState.RUNNING), ("i-2", InstanceState.ENDED)):
        row = InstanceRow(name, "gpus", SMALL, state, 1_000, "1")
        table.commit((Put(instance_key(row), 1, encode_row(row), Expect.ABSENT),))
    assert [has_instance(table, name) for name in ("i-1", "i-2", "i-3")] == [True, False, False]


def test_fleet_row_keeps_times_of_spare_instances_by_slots() -> None:
    table, fleet = MemoryTable(), FleetRow("gpus", spare_ms={4: (1_000, 2_000), 8: (3_000,)})
    table.commit((Put(Key(FLEETS, "gpus"), 1, encode_row(fleet), Expect.ABSENT),))
    assert read_fleet(table, "gpus") == fleet
