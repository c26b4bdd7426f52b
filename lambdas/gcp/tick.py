"""The function of each minute, and behind the trigger on new jobs, notices and searches that wait:
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

# Events that wait for a pass hold a thread each.
THREADS = 32

log = logging.getLogger(__name__)
telemetry = Telemetry("tick")
steps = TickSteps(cluster)
passes = SharedPass()


def handle(call: Call) -> int:
    """Run all steps each minute; for a new row only those it asks for. An event for which it is too
    early, or no time is left, comes again.
    """
    if not is_event(call.headers):
        run_steps(steps.minute_steps(telemetry.count), now_ms(), call.left_ms)
        telemetry.log_line("ticked")
        return DONE
    try:
        path = new_row_path(call.headers, "tick")
    except NotAnEvent as error:
        log.error("refused: %s", error)
        return REFUSED
    # What a row that is gone asked for was done.
    key = adapters.state_table.find_key(path)
    is_done = key is None or passes.join(
        key.partition,
        lambda partitions: steps.run_row_steps(partitions, call.left_ms),
        call.left_ms,
    )
    telemetry.log_line("woken", by=key.partition if key else "", done=is_done)
    return DONE if is_done else AGAIN


app = Function(telemetry, handle, threads=THREADS)
