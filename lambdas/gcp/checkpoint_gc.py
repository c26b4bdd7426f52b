"""The function that deletes checkpoints marked for deletion: `lambdas.gcp.checkpoint_gc:app`."""

from lambdas.gcp.adapters import cluster
from lambdas.gcp.function import DONE, Call, Function
from lambdas.gcp.telemetry import Telemetry

# Time for the response, and for a pass that exceeds its budget.
RESERVE_MS = 30_000

telemetry = Telemetry("checkpoint_gc")


def handle(call: Call) -> int:
    """Run passes of the collector until no work is due or less than RESERVE_MS is left.

    The collector deletes checkpoints and experiments that are marked for deletion. Write a log line
    with the number of passes. Always return the HTTP status DONE, so that the call is not repeated:
    the next tick starts the function again if work is left. Raises TableError.
    """
    passes = cluster.collector.collect_while(call.left_ms, RESERVE_MS)
    telemetry.log_line("collected", passes=passes)
    return DONE


app = Function(telemetry, handle, threads=2, one_at_a_time=True)
