"""The function of each minute, and behind new intents in the table: `lambdas.tick.handler`."""

from typing import Any

from lambdas.clock import now_ms
from lambdas.deployed import engine
from lambdas.rounds import run_round, run_wake, whole_round
from lambdas.stream import Served, key_of
from lambdas.telemetry import Telemetry

telemetry = Telemetry("tick")


@telemetry.told
def handler(event: Any, context: Any) -> Any:
    """A whole round each minute; for new intents only what they are about. Those for which it is
    too early come again.
    """
    intents, served = event.get("Records", ()), Served()
    left_ms = context.get_remaining_time_in_millis
    if not intents:
        run_round(whole_round(engine(), telemetry.count), now_ms(), left_ms)
    elif not run_wake([key_of(record).partition for record in intents], left_ms):
        served.failed += [record["dynamodb"]["SequenceNumber"] for record in intents]
    telemetry.said("ticked", intents=len(intents), again=len(served.failed))
    return served.answer()
