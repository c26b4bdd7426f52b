"""The function that computes suggestions for Bayesian searches: `lambdas.aws.suggest.handler`."""

from typing import Any

from lambdas.aws.adapters import cluster
from lambdas.aws.telemetry import Telemetry

# Time for the response, and for a suggestion that was started before.
RESERVE_MS = 60_000

telemetry = Telemetry("suggest")


@telemetry.wrap_handler
def handler(event: Any, context: Any) -> Any:
    """Compute suggestions in passes until a pass answers no search or at most RESERVE_MS is left.

    Write a log line with the number of passes, and return None. The next tick starts the function
    again for searches that still wait. Raises TableError.
    """
    passes = 0
    while context.get_remaining_time_in_millis() > RESERVE_MS and cluster.suggester.suggest_all():
        passes += 1
    telemetry.log_line("suggested", passes=passes)
