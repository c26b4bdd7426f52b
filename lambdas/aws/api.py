"""The API as a function behind API Gateway: `lambdas.aws.api.handler`."""

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
    """Return the application's response to a request of API Gateway.

    Return status 403 if the cluster has a CloudFront distribution and the request did not pass
    through it. Only the application writes a log line for the request. Errors of the application
    are answered with status 500.
    """
    if not comes_through_distribution(event, os.environ.get("DETCLOUD_ORIGIN_SHA256", "")):
        return REFUSAL
    return _answer(event, context)
