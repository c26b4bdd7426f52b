"""The function for new rows that need a step of the tick at once: `lambdas.aws.wake.handler`.

The state table's stream calls the function. The tick of each minute is a separate function, so that
the stream can never use up its concurrency.
"""

from typing import Any

from lambdas.aws.adapters import cluster
from lambdas.aws.stream import BatchOutcome, is_left_to_tick, key_of
from lambdas.aws.telemetry import Telemetry
from lambdas.clock import now_ms
from lambdas.tick_steps import TickSteps

telemetry = Telemetry("wake")
steps = TickSteps(cluster)


@telemetry.wrap_handler
def handler(event: Any, context: Any) -> Any:
    """Run the steps for the partitions of new rows; return the records to deliver again.

    If work is left, the stream delivers all records again. Records that are older than
    TAKEOVER_MS are not delivered again, because the tick of each minute continues their work. Write
    a log line. Raises StepsFailed if a step failed, so that the stream delivers the records again,
    and KeyError for an event without records.
    """
    intents, outcome = event["Records"], BatchOutcome()
    partitions = [key_of(record).partition for record in intents]
    if not steps.run_row_steps(partitions, context.get_remaining_time_in_millis):
        time_ms = now_ms()
        outcome.failed += [
            record["dynamodb"]["SequenceNumber"]
            for record in intents
            if not is_left_to_tick(record, time_ms)
        ]
    telemetry.log_line("woken", intents=len(intents), again=len(outcome.failed))
    return outcome.answer()
