"""The steps of a restore that every cloud has in common."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Final

from control_plane.engine.engine import Engine
from control_plane.restoration.restart import (
    RestartReport,
    begin_incarnation,
    keep_used_ids,
    read_next_ids,
)
from control_plane.state.table import StateTable
from detcloud.shared.plurals import count_text
from infra.restoration import RestoreReport, Steps
from infra.row_copy import CopyReport, ItemStore, StoredItem, copy_rows
from infra.stack_program import Progress
from lambdas.clock import now_ms

NOTHING_COPIED: Final = CopyReport(0, 0, 0, ())

OpenTable = Callable[[str], AbstractContextManager[StateTable]]
"""Opens a table or a database by its name."""


def wait_until_quiet(steps: Steps, quiet_at: float, calls: str) -> None:
    """Wait until the time `quiet_at` of the steps' clock, as a step if the time is in the future.

    `calls` names the calls of functions that began before the stop and end until then.
    """
    left = quiet_at - steps.clock.seconds()
    if left > 0:
        with steps.step(f"waiting for the end of {calls} that had begun"):
            steps.clock.sleep(left)


def copy_state(
    source: Iterable[StoredItem],
    target: ItemStore,
    open_table: Callable[[], AbstractContextManager[StateTable]],
    counter_value: Callable[[StoredItem], int],
) -> CopyReport:
    """Make the rows of `target` equal to `source`, and keep the used ids.

    Args:
        source: the rows to restore.
        target: the store of the cluster.
        open_table: opens the same store as a table, after the copy.
        counter_value: returns the next id of a row that is a counter.
    """
    copied = copy_rows(source, target)
    with open_table() as table:
        keep_used_ids(table, {item.key.sort: counter_value(item) for item in copied.counters})
    return copied


def copy_text(copied: CopyReport) -> str:
    """Return the numbers of rows of a copy, for users."""
    written, deleted = count_text(copied.written, "row"), count_text(copied.deleted, "row")
    return f"{written} written, {deleted} deleted, {copied.unchanged} unchanged"


def restart_state(table: StateTable, *, is_new_store: bool, progress: Progress) -> RestartReport:
    """Begin a new incarnation of the restored state in `table`.

    In a new store, ids are skipped. After a copy, the counters are those of the lost state, so that
    no id need be skipped.
    """
    given = None if is_new_store else read_next_ids(table)
    return begin_incarnation(Engine(table, now_ms), given, progress)


def restore_report(
    copied: CopyReport, restarted: RestartReport, *, is_new_store: bool
) -> RestoreReport:
    """Return the report of a finished restore."""
    return RestoreReport(
        written=copied.written,
        deleted=copied.deleted,
        experiments=restarted.experiments,
        agents=len(restarted.agents),
        incarnation=restarted.incarnation,
        is_new_store=is_new_store,
    )
