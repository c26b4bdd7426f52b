"""Deletion of old rows of ended instances."""

from control_plane.fleet.records import InstanceState
from control_plane.fleet.rows import read_past_instances
from control_plane.state.memory import MemoryTable
from provisioner.ledger import EXPIRED_ROWS_MAX, PAST_INSTANCE_TTL_MS, Ledger
from tests.unit.provisioner.fleet_table import NOW_MS, instance

POOL = "p"


def end(table: MemoryTable, ended_ms: int, *names: str) -> None:
    ledger = Ledger(table, POOL)
    rows = [
        instance(name, launched_ms=ended_ms - 1, state=InstanceState.ENDED, ended_ms=ended_ms)
        for name in names
    ]
    ledger.instances |= {row.id: row for row in rows}
    ledger.commit(ledger.fleet, changed_rows=rows)


def past_instance_ids(table: MemoryTable) -> set[str]:
    return {row.id for row in read_past_instances(table, POOL)[0]}


def test_old_past_instances_are_deleted_as_others_end() -> None:
    table = MemoryTable()
    end(table, NOW_MS, "a", "b", "c")
    end(table, NOW_MS + PAST_INSTANCE_TTL_MS, "d")
    assert past_instance_ids(table) == {"a", "b", "c", "d"}
    end(table, NOW_MS + PAST_INSTANCE_TTL_MS + 1, "e")
    assert past_instance_ids(table) == {"c", "d", "e"}
    end(table, NOW_MS + PAST_INSTANCE_TTL_MS + 2, "f")
    assert past_instance_ids(table) == {"d", "e", "f"}


def test_commit_deletes_a_limited_number_of_rows() -> None:
    table = MemoryTable()
    many = [f"i-{number:02d}" for number in range(30)]
    end(table, NOW_MS, *many)
    end(table, NOW_MS + PAST_INSTANCE_TTL_MS + 1, *(f"{name}x" for name in many))
    assert len(past_instance_ids(table)) == 60 - EXPIRED_ROWS_MAX
