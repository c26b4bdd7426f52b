"""Each key belongs to a declared family of rows."""

import subprocess
import sys

import pytest

from control_plane.rows import (
    actor_rows,
    agent_rows,
    experiment_rows,
    fleet_rows,
    pool_rows,
    trial_rows,
    user_rows,
    webhook_rows,
)
from control_plane.rows.registry import (
    ROW_TYPES,
    find_row_type,
    passing_row_types,
    waking_row_types,
)
from control_plane.rows.row_type import RowType

KEYS = [
    ("trial#7", "M", actor_rows.HEAD),
    ("trial#7", "M#0001#experiment#3", actor_rows.MAIL),
    ("pool#a", "P#settings", actor_rows.PART),
    ("pool#a", "P#outbox/000001", actor_rows.OUTBOX),
    ("agent#a", "Z#000000000001", actor_rows.JOURNAL),
    ("agent#a", "Z#dropped#M#0001#pool#a", actor_rows.DROPPED_MAIL),
    ("experiment#1", "D#M#0001#trial#7", actor_rows.DEAD_LETTER),
    ("experiment#1", "H#method", experiment_rows.METHOD_CALL),
    ("trial#7", "V#", trial_rows.TRIAL_EDIT),
    ("trial#7", "V#0000000c", trial_rows.CHECKPOINT_EDIT),
    ("collections", "000000000001", experiment_rows.COLLECTION),
    ("collections", "files/000000000001/c", experiment_rows.REMOVAL),
    ("leases#a", "agent-1", agent_rows.LEASE),
    ("leases#a", "~brake", agent_rows.LOSS_DETECTION),
    ("models", "digits", user_rows.MODEL),
    ("model-versions#digits", "000000001", user_rows.MODEL_VERSION),
    ("idempotency#root", "J#1#I#key", user_rows.IDEMPOTENCY_PART),
    ("instances#a", "i-1", fleet_rows.INSTANCE),
    ("past-instances#a", "000000000000001.i-1", fleet_rows.PAST_INSTANCE),
]


@pytest.mark.parametrize(("partition", "sort", "row_type"), KEYS)
def test_finds_row_type_of_key(partition: str, sort: str, row_type: RowType) -> None:
    assert find_row_type(partition, sort) is row_type


@pytest.mark.parametrize(
    ("partition", "sort"),
    [
        ("trial#7", "Q#1"),
        ("agent#7", "L#1"),
        ("tokens#7", "1"),
        ("jobs", "1"),
        ("cluster", "x"),
        ("trial", "M"),
    ],
)
def test_finds_no_row_type_of_undeclared_keys(partition: str, sort: str) -> None:
    assert find_row_type(partition, sort) is None


def test_names_and_keys_are_unique() -> None:
    assert len({row.name for row in ROW_TYPES}) == len(ROW_TYPES)
    assert len({row.key for row in ROW_TYPES}) == len(ROW_TYPES)


def test_lists_row_types_by_effect() -> None:
    assert waking_row_types("advance") == (actor_rows.MAIL,)
    waking_tick = {
        experiment_rows.SUGGESTION,
        pool_rows.JOB,
        fleet_rows.NOTICE,
        webhook_rows.EVENT,
    }
    assert set(waking_row_types("tick")) == waking_tick
    passing = {
        actor_rows.DEAD_LETTER,
        experiment_rows.SUGGESTION,
        pool_rows.JOB,
        fleet_rows.INSTANCE,
        fleet_rows.INTENT,
        webhook_rows.EVENT,
    }
    assert set(passing_row_types()) == passing


def test_sort_end_follows_all_keys_of_the_family() -> None:
    assert trial_rows.METRICS.sort < "R#loss#00000001" < trial_rows.METRICS.sort_end
    assert agent_rows.AGENT.sort_end > "zzz"


def test_declarations_import_no_other_module_of_the_server() -> None:
    code = (
        "import sys, control_plane.rows.registry\n"
        "packages = ('control_plane', 'pydantic', 'detcloud')\n"
        "print([name for name in sorted(sys.modules) if name.startswith(packages)])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    own = [name for name in result.stdout.split("'")[1::2] if ".rows" not in name]
    assert own == ["control_plane"]
