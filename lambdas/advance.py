"""The function behind the table's stream, filtered to new mail: `lambdas.advance.handler`."""

from typing import Any

from lambdas.deployed import engine
from lambdas.stream import serve
from lambdas.telemetry import Telemetry

telemetry = Telemetry("advance")


@telemetry.told
def handler(event: Any, context: Any) -> Any:
    """Advances whom the records' messages went to; records that failed come again."""
    served = serve(engine(), event["Records"], context.get_remaining_time_in_millis)
    telemetry.said("served", records=len(event["Records"]), actors=served.actors)
    telemetry.count(ActorsWithMail=served.waiting, RecordsFailed=len(served.failed))
    return served.answer()
