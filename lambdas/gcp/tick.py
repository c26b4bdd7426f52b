"""The tick, called every minute and for new jobs, notices and waiting searches:
`lambdas.gcp.tick:app`.
"""

import logging

from lambdas.clock import now_ms
from lambdas.gcp.adapters import adapters, cluster
from lambdas.gcp.function import AGAIN, DONE, REFUSED, Call, Function
from lambdas.gcp.row_events import NotAnEvent, is_event, new_row_path
from lambdas.gcp.shared_pass import SharedPass
from lambdas.gcp.telemetry import Telemetry
from lambdas.tick_steps import TickSteps, run_steps

# Each event that waits for a pass occupies a thread.
THREADS = 32

log = logging.getLogger(__name__)
telemetry = Telemetry("tick")
steps = TickSteps(cluster)
passes = SharedPass()


def handle(call: Call) -> int:
    """Run the steps of a tick, and return the HTTP status.

    A call that is not an event is the call of each minute: run all steps that are due. For an event
    about a new row, join a pass that runs the steps for the row's partition. Do nothing for a row
    that no longer exists.

    DONE: all work is complete. AGAIN: work is left, and Eventarc must deliver the event again.
    REFUSED, with a logged error: the event is not about a new row for the tick. Raises StepsFailed
    if a step failed, PassFailed if the pass failed in another thread, and TableError.
    """
    if not is_event(call.headers):
        run_steps(steps.minute_steps(telemetry.count), now_ms(), call.left_ms)
        telemetry.log_line("ticked")
        return DONE
    try:
        path = new_row_path(call.headers, "tick")
    except NotAnEvent as error:
        log.error("refused a call that is not the event of a new row: %s", error)
        return REFUSED
    # The work of a deleted row was already done.
    key = adapters.state_table.find_key(path)
    is_done = key is None or passes.join(
        key.partition,
        lambda partitions: steps.run_row_steps(partitions, call.left_ms),
        call.left_ms,
    )
    telemetry.log_line("woken", by=key.partition if key else "", done=is_done)
    return DONE if is_done else AGAIN


app = Function(telemetry, handle, threads=THREADS)
