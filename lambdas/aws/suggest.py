"""The function that asks the models of Bayesian searches: `lambdas.aws.suggest.handler`."""

from typing import Any

from lambdas.aws.adapters import cluster
from lambdas.aws.telemetry import Telemetry

# For the answer, and for a suggestion that has begun.
RESERVE_MS = 60_000

telemetry = Telemetry("suggest")


@telemetry.wrap_handler
def handler(event: Any, context: Any) -> Any:
    """Suggest until no search waits, or the time is used up; what failed is the next tick's."""
    passes = 0
    while context.get_remaining_time_in_millis() > RESERVE_MS and cluster.suggester.suggest_all():
        passes += 1
    telemetry.log_line("suggested", passes=passes)
