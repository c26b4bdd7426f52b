"""The function that deletes checkpoints marked for deletion:
`lambdas.aws.checkpoint_gc.handler`.
"""

from typing import Any

from lambdas.aws.adapters import cluster
from lambdas.aws.telemetry import Telemetry

# Time for the response, and for a pass that exceeds its budget.
RESERVE_MS = 30_000

telemetry = Telemetry("checkpoint_gc")


@telemetry.wrap_handler
def handler(event: Any, context: Any) -> Any:
    """Run passes of the collector until no work is due or less than RESERVE_MS is left.

    The collector deletes checkpoints and experiments that are marked for deletion. Write a log line
    with the number of passes, and return None. The next tick starts the function again if work is
    left. Raises TableError.
    """
    passes = cluster.collector.collect_while(context.get_remaining_time_in_millis, RESERVE_MS)
    telemetry.log_line("collected", passes=passes)
