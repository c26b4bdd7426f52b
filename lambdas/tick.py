"""The function of each minute, and behind new intents in the table: `lambdas.tick.handler`."""

from typing import Any

from lambdas.clock import now_ms
from lambdas.deployed import engine
from lambdas.rounds import run_round, short_round, whole_round
from lambdas.stream import key_of
from lambdas.telemetry import Telemetry

telemetry = Telemetry("tick")


@telemetry.told
def handler(event: Any, context: Any) -> Any:
    """A whole round each minute; for new intents only what they are about."""
    intents = [key_of(record).partition for record in event.get("Records", ())]
    steps = short_round(intents) if intents else whole_round(engine(), telemetry.count)
    run_round(steps, now_ms())
    telemetry.said("ticked", intents=len(intents))
    return {"batchItemFailures": []}
