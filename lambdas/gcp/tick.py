"""The tick, which Cloud Scheduler calls every minute: `lambdas.gcp.tick:app`."""

from lambdas.clock import now_ms
from lambdas.gcp.adapters import cluster
from lambdas.gcp.function import AGAIN, DONE, Call, Function
from lambdas.gcp.row_events import is_event
from lambdas.gcp.telemetry import Telemetry
from lambdas.tick_steps import TickSteps, run_steps

telemetry = Telemetry("tick")
steps = TickSteps(cluster)


def handle(call: Call) -> int:
    """Run all steps of a tick that are due, and return the HTTP status DONE.

    Return AGAIN for an event about a new row: during an upgrade, the trigger may still call this
    function instead of `wake`. Raises StepsFailed if a step failed.
    """
    if is_event(call.headers):
        return AGAIN
    run_steps(steps.minute_steps(telemetry.count), now_ms(), call.left_ms)
    telemetry.log_line("ticked")
    return DONE


app = Function(telemetry, handle)
