"""The tick as an asynchronous function of Google's functions-framework.

The framework answers by the returned value if the value is an ASGI application.
"""

import functions_framework.aio

from lambdas.gcp.function import Function
from lambdas.gcp.tick import app


@functions_framework.aio.http  # type: ignore[untyped-decorator]
async def tick(request: object) -> Function:
    """Answer a request by the tick."""
    return app
