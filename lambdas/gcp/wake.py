"""The function for new rows that need a step of the tick at once: new jobs, notices and waiting
searches. Triggers on new documents call `lambdas.gcp.wake:app`.

The tick of each minute is a separate service, so that events can never use up its instances.
"""

import logging

from lambdas.clock import now_ms
from lambdas.gcp.adapters import adapters, cluster
from lambdas.gcp.function import AGAIN, DONE, REFUSED, Call, Function
from lambdas.gcp.row_events import NotAnEvent, is_left_to_tick, new_row_path
from lambdas.gcp.shared_pass import SharedPass
from lambdas.gcp.telemetry import Telemetry
from lambdas.tick_steps import TickSteps

# Each event that waits for a pass occupies a thread.
THREADS = 32

log = logging.getLogger(__name__)
telemetry = Telemetry("wake")
steps = TickSteps(cluster)
passes = SharedPass()


def handle(call: Call) -> int:
    """Join a pass that runs the steps for the row of an event, and return the HTTP status.

    Do nothing for a row that no longer exists.

    DONE: all work is complete, or the row is older than TAKEOVER_MS, so that the tick of each
    minute continues its work. AGAIN: work is left, and Eventarc must deliver the event again.
    REFUSED, with a logged error: the call is not an event about a new row for the tick. Raises
    StepsFailed if a step failed, PassFailed if the pass failed in another thread, and TableError.
    """
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
    return DONE if is_done or is_left_to_tick(call.headers, now_ms()) else AGAIN


app = Function(telemetry, handle, threads=THREADS)
