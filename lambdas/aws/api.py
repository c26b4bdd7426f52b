"""The function behind API Gateway: `lambdas.aws.api.handler`."""

import os
from typing import Any

from mangum import Mangum

from lambdas.aws.adapters import adapters, cluster
from lambdas.aws.front import REFUSAL, comes_through_distribution
from lambdas.aws.telemetry import Telemetry

telemetry = Telemetry("api")
_answer = Mangum(cluster.build_app(adapters.administrator_tokens()), lifespan="off")


@telemetry.wrap_handler
def handler(event: Any, context: Any) -> Any:
    """Answer a request; the application writes its line of the log."""
    if not comes_through_distribution(event, os.environ.get("DETCLOUD_ORIGIN_SHA256", "")):
        return REFUSAL
    return _answer(event, context)
