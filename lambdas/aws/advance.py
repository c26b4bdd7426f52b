"""The function for new mail, called by the state table's stream: `lambdas.aws.advance.handler`.

The stream is filtered to records of new messages.
"""

from typing import Any

from lambdas.aws.adapters import cluster
from lambdas.aws.stream import advance_receivers
from lambdas.aws.telemetry import Telemetry

telemetry = Telemetry("advance")


@telemetry.wrap_handler
def handler(event: Any, context: Any) -> Any:
    """Advance the receivers of the messages in a batch of stream records.

    Return the records that failed in the form of Lambda's batch responses, so that the stream
    delivers them again. Write a log line and metrics. Raises KeyError for an event without records.
    """
    records = event["Records"]
    outcome = advance_receivers(cluster.engine, records, context.get_remaining_time_in_millis)
    telemetry.log_line("served", records=len(records), actors=outcome.actors)
    telemetry.count(ActorsWithMail=outcome.with_mail, RecordsFailed=len(outcome.failed))
    return outcome.answer()
