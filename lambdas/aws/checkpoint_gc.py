"""The function that deletes checkpoints marked for deletion:
`lambdas.aws.checkpoint_gc.handler`.
"""

from typing import Any

from lambdas.aws.adapters import cluster
from lambdas.aws.telemetry import Telemetry

# For the answer, and for what a pass takes beyond its budget.
RESERVE_MS = 30_000

telemetry = Telemetry("checkpoint_gc")


@telemetry.wrap_handler
def handler(event: Any, context: Any) -> Any:
    """Make passes until nothing is left to do, or the time is used up; the tick asks again."""
    passes = cluster.collector.collect_while(context.get_remaining_time_in_millis, RESERVE_MS)
    telemetry.log_line("collected", passes=passes)
