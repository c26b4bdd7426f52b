"""The tick, called every minute and for new rows of the state table: `lambdas.aws.tick.handler`."""

from typing import Any

from lambdas.aws.adapters import cluster
from lambdas.aws.stream import BatchOutcome, key_of
from lambdas.aws.telemetry import Telemetry
from lambdas.clock import now_ms
from lambdas.tick_steps import TickSteps, run_steps

telemetry = Telemetry("tick")
steps = TickSteps(cluster)


@telemetry.wrap_handler
def handler(event: Any, context: Any) -> Any:
    """Run the steps of a tick, and return the records that the stream must deliver again.

    An event without records is the call of each minute and runs all steps that are due. For stream
    records, run only the steps for the partitions of the new rows. If work is left, all records are
    delivered again. Write a log line and metrics. Raises StepsFailed if a step failed, so that the
    stream delivers the records again.
    """
    intents, outcome = event.get("Records", ()), BatchOutcome()
    left_ms = context.get_remaining_time_in_millis
    if not intents:
        run_steps(steps.minute_steps(telemetry.count), now_ms(), left_ms)
    elif not steps.run_row_steps([key_of(record).partition for record in intents], left_ms):
        outcome.failed += [record["dynamodb"]["SequenceNumber"] for record in intents]
    telemetry.log_line("ticked", intents=len(intents), again=len(outcome.failed))
    return outcome.answer()
