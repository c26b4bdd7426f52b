"""The function that deletes checkpoints marked for deletion: `lambdas.gcp.checkpoint_gc:app`."""

from lambdas.gcp.adapters import cluster
from lambdas.gcp.function import DONE, Call, Function
from lambdas.gcp.telemetry import Telemetry

# For the answer, and for what a pass takes beyond its budget.
RESERVE_MS = 30_000

telemetry = Telemetry("checkpoint_gc")


def handle(call: Call) -> int:
    """Make passes until nothing is left to do, or the time is used up; the tick asks again."""
    passes = cluster.collector.collect_while(call.left_ms, RESERVE_MS)
    telemetry.log_line("collected", passes=passes)
    return DONE


app = Function(telemetry, handle, threads=2, one_at_a_time=True)
