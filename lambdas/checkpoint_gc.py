"""The function that removes what is condemned from the stores: `lambdas.checkpoint_gc.handler`."""

from typing import Any

from lambdas.deployed import collector
from lambdas.telemetry import Telemetry

# For the answer, and for what a pass takes beyond its budget.
RESERVE_MS = 30_000

telemetry = Telemetry("checkpoint_gc")


@telemetry.told
def handler(event: Any, context: Any) -> Any:
    """Passes until nothing is left to do, or the time is used up; the tick asks again."""
    passes = 0
    while context.get_remaining_time_in_millis() > RESERVE_MS and collector().collect():
        passes += 1
    telemetry.said("collected", passes=passes)
