"""The function that asks the models of Bayesian searches: `lambdas.gcp.suggest:app`."""

from lambdas.gcp.adapters import cluster
from lambdas.gcp.function import DONE, Call, Function
from lambdas.gcp.telemetry import Telemetry

# For the answer, and for a suggestion that has begun.
RESERVE_MS = 60_000

telemetry = Telemetry("suggest")


def handle(call: Call) -> int:
    """Suggest until no search waits, or the time is used up; what failed is the next tick's."""
    passes = 0
    while call.left_ms() > RESERVE_MS and cluster.suggester.suggest_all():
        passes += 1
    telemetry.log_line("suggested", passes=passes)
    return DONE


app = Function(telemetry, handle, threads=2, one_at_a_time=True)
