"""The tick, which Cloud Scheduler calls every minute: `lambdas.gcp.tick:app`.

With the setting `copies`, a second job calls the tick for exports of the state.
"""

from lambdas.clock import now_ms
from lambdas.deployed_adapters import read_setting
from lambdas.gcp.adapters import cluster
from lambdas.gcp.function import AGAIN, DONE, Call, Function
from lambdas.gcp.row_events import is_event
from lambdas.gcp.state_export import EXPORT_HEADER, post_as_function, start_export
from lambdas.gcp.telemetry import Telemetry
from lambdas.tick_steps import TickSteps, run_steps

telemetry = Telemetry("tick")
steps = TickSteps(cluster)


def handle(call: Call) -> int:
    """Run all steps of a tick that are due, and return the HTTP status DONE.

    Return AGAIN for an event about a new row: during an upgrade, the trigger may still call this
    function instead of `wake`. A call with EXPORT_HEADER only starts an export of the state.

    Raises StepsFailed if a step failed, and ExportFailed if an export was not started.
    """
    if is_event(call.headers):
        return AGAIN
    if EXPORT_HEADER in call.headers:
        database = f"projects/{read_setting('PROJECT')}/databases/{read_setting('DATABASE')}"
        bucket = read_setting("STATE_COPY")
        folder = start_export(database, bucket, now_ms(), post_as_function)
        telemetry.log_line(f"export to {folder} started")
        return DONE
    run_steps(steps.minute_steps(telemetry.count), now_ms(), call.left_ms)
    telemetry.log_line("ticked")
    return DONE


app = Function(telemetry, handle)
