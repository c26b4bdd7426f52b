"""The tick, called every minute: `lambdas.aws.tick.handler`."""

from typing import Any

from lambdas.aws.adapters import cluster
from lambdas.aws.telemetry import Telemetry
from lambdas.clock import now_ms
from lambdas.tick_steps import TickSteps, run_steps

telemetry = Telemetry("tick")
steps = TickSteps(cluster)


@telemetry.wrap_handler
def handler(event: Any, context: Any) -> None:
    """Run all steps of a tick that are due, for any event.

    During an upgrade the stream may still send rows, whose steps are among those of a tick. Write a
    log line and metrics. Raises StepsFailed if a step failed. Lambda then repeats the event once,
    and finally sends it to the dead-letter queue.
    """
    run_steps(steps.minute_steps(telemetry.count), now_ms(), context.get_remaining_time_in_millis)
    telemetry.log_line("ticked")
