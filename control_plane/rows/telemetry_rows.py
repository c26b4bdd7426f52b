"""The rows of spans, which a cluster with an OpenTelemetry collector exports."""

from control_plane.rows.row_type import RowType

SPANS = RowType(
    name="spans of a run",
    key="spans / TIME.TRIAL.EPOCH.EVENT",
    meaning="Spans of a trial's run that are not exported yet.",
    record="control_plane.actors.spans:RunSpans",
    writers=("actors.trial.span_tracking",),
    readers=("telemetry.span_export",),
    expiry="24 h after the event",
)

ROW_TYPES = (SPANS,)
