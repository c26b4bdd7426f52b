"""The function that asks the models of Bayesian searches: `lambdas.suggest.handler`."""

from typing import Any

from lambdas.deployed import suggester
from lambdas.telemetry import Telemetry

# For the answer, and for a suggestion that has begun.
RESERVE_MS = 60_000

telemetry = Telemetry("suggest")


@telemetry.told
def handler(event: Any, context: Any) -> Any:
    """Suggests until no search waits, or the time is used up; what failed is the next tick's."""
    passes = 0
    while context.get_remaining_time_in_millis() > RESERVE_MS and suggester().suggest():
        passes += 1
    telemetry.said("suggested", passes=passes)
