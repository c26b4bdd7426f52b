"""The function of each minute, and behind new intents in the table: `lambdas.tick.handler`."""

from typing import Any

from lambdas.clock import now_ms
from lambdas.deployed import engine
from lambdas.rounds import provisioning, run_round, whole_round
from lambdas.telemetry import Telemetry

telemetry = Telemetry("tick")


@telemetry.told
def handler(event: Any, context: Any) -> Any:
    """A whole round each minute; for new intents only what brings instances."""
    intents = event.get("Records", ())
    run_round([provisioning] if intents else whole_round(engine(), telemetry.count), now_ms())
    telemetry.said("ticked", intents=len(intents))
    return {"batchItemFailures": []}
