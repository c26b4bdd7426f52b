"""The rows of the alarms that the cluster decides."""

from control_plane.rows.row_type import RowType

ALARM = RowType(
    name="alarm",
    key="alarms / ALARM#POOL",
    meaning="An alarm whose condition is true, or whose end was not notified yet.",
    record="control_plane.alarms.records:AlarmRow",
    writers=("alarms.watch",),
    readers=(
        "alarms.watch",
        "queries.alarm",
        "monitoring.cluster_metrics",
    ),
    is_mutable=True,
)
HOURLY_COST = RowType(
    name="hourly cost",
    key="cluster / hourly-cost",
    meaning="The highest cost per hour of all machines, for each hour of the last eight days.",
    record="control_plane.alarms.records:CostHistory",
    writers=("alarms.observations",),
    readers=("alarms.observations",),
    is_mutable=True,
)

ROW_TYPES = (ALARM, HOURLY_COST)
