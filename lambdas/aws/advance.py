"""The function behind the table's stream, filtered to new mail: `lambdas.aws.advance.handler`."""

from typing import Any

from lambdas.aws.adapters import cluster
from lambdas.aws.stream import advance_receivers
from lambdas.aws.telemetry import Telemetry

telemetry = Telemetry("advance")


@telemetry.wrap_handler
def handler(event: Any, context: Any) -> Any:
    """Advance the actors that the records' messages went to; records that failed come again."""
    records = event["Records"]
    outcome = advance_receivers(cluster.engine, records, context.get_remaining_time_in_millis)
    telemetry.log_line("served", records=len(records), actors=outcome.actors)
    telemetry.count(ActorsWithMail=outcome.with_mail, RecordsFailed=len(outcome.failed))
    return outcome.answer()
