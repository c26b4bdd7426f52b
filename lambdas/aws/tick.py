"""The function of each minute, and behind new intents in the table: `lambdas.aws.tick.handler`."""

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
    """Run all steps each minute; for new intents only those they ask for. Those for which it is
    too early come again.
    """
    intents, outcome = event.get("Records", ()), BatchOutcome()
    left_ms = context.get_remaining_time_in_millis
    if not intents:
        run_steps(steps.minute_steps(telemetry.count), now_ms(), left_ms)
    elif not steps.run_row_steps([key_of(record).partition for record in intents], left_ms):
        outcome.failed += [record["dynamodb"]["SequenceNumber"] for record in intents]
    telemetry.log_line("ticked", intents=len(intents), again=len(outcome.failed))
    return outcome.answer()
