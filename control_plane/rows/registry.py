"""All rows of the state table, and the row type of a key."""

from control_plane.rows import (
    actor_rows,
    agent_rows,
    alarm_rows,
    cluster_rows,
    experiment_rows,
    fleet_rows,
    pool_rows,
    telemetry_rows,
    trial_rows,
    user_rows,
    webhook_rows,
)
from control_plane.rows.row_type import Function, RowType

SUBJECTS = {
    "Actors": actor_rows.ROW_TYPES,
    "Experiments": experiment_rows.ROW_TYPES,
    "Trials": trial_rows.ROW_TYPES,
    "Pools and jobs": pool_rows.ROW_TYPES,
    "Agents": agent_rows.ROW_TYPES,
    "Fleets": fleet_rows.ROW_TYPES,
    "Users": user_rows.ROW_TYPES,
    "Webhooks": webhook_rows.ROW_TYPES,
    "The cluster": cluster_rows.ROW_TYPES,
    "Alarms": alarm_rows.ROW_TYPES,
    "Traces": telemetry_rows.ROW_TYPES,
}
"""The row types by subject, in the order of docs/state.md."""

ROW_TYPES: tuple[RowType, ...] = tuple(
    row_type for row_types in SUBJECTS.values() for row_type in row_types
)

_WAKING = tuple((row_type, function) for row_type in ROW_TYPES for function in row_type.wakes)


def find_row_type(partition: str, sort: str) -> RowType | None:
    """Return the row type of a key. Return None for a key that no row type declares.

    Of several matching forms, the form with the longest fixed sort key is chosen.
    """
    matching = [
        row_type
        for row_type in ROW_TYPES
        if _has_partition(row_type, partition) and row_type.matches_sort(sort)
    ]
    return max(matching, key=lambda row_type: len(row_type.sort), default=None)


def waking_row_types(function: Function) -> tuple[RowType, ...]:
    """Return the row types with new rows that wake a function at once."""
    return tuple(row_type for row_type in ROW_TYPES if function in row_type.wakes)


def woken_function(partition: str, sort: str) -> Function | None:
    """Return the function that a new row with this key wakes. Return None for no function.

    The rows of actors are recognized by the sort key alone, and other rows by the partition alone,
    because filters of events can compare no more.
    """
    for row_type, function in _WAKING:
        if (
            sort.startswith(row_type.sort)
            if row_type.is_of_actors
            else _has_partition(row_type, partition)
        ):
            return function
    return None


def passing_row_types() -> tuple[RowType, ...]:
    """Return the row types without rows after the end of all work."""
    return tuple(row_type for row_type in ROW_TYPES if row_type.is_passing)


def _has_partition(row_type: RowType, partition: str) -> bool:
    """Return whether a partition has the form of a row type's partitions."""
    if row_type.is_of_actors:
        return partition.startswith(actor_rows.ACTOR_PARTITIONS)
    if row_type.has_one_partition:
        return partition == row_type.partition
    return partition.startswith(row_type.partition)
