"""The function behind API Gateway: `lambdas.api.handler`."""

from typing import Any

from mangum import Mangum

from lambdas.gateway import app
from lambdas.telemetry import Telemetry

telemetry = Telemetry("api")
_answer = Mangum(app(), lifespan="off")


@telemetry.told
def handler(event: Any, context: Any) -> Any:
    """Answers a request; the application writes its line of the log."""
    return _answer(event, context)
