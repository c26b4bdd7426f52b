"""The function that computes suggestions for Bayesian searches: `lambdas.gcp.suggest:app`."""

from lambdas.gcp.adapters import cluster
from lambdas.gcp.function import DONE, Call, Function
from lambdas.gcp.telemetry import Telemetry

# Time for the response, and for a suggestion that was started before.
RESERVE_MS = 60_000

telemetry = Telemetry("suggest")


def handle(call: Call) -> int:
    """Compute suggestions in passes until a pass answers no search or at most RESERVE_MS is left.

    Write a log line with the number of passes. Always return the HTTP status DONE, so that the call
    is not repeated: the next tick starts the function again for searches that still wait. Raises
    TableError.
    """
    passes = 0
    while call.left_ms() > RESERVE_MS and cluster.suggester.suggest_all():
        passes += 1
    telemetry.log_line("suggested", passes=passes)
    return DONE


app = Function(telemetry, handle, threads=2, one_at_a_time=True)
