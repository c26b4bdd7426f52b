"""The tick as an asynchronous function of Google's functions-framework, which answers with what a
function returns, if that is an ASGI application.
"""

import functions_framework.aio

from lambdas.gcp.function import Function
from lambdas.gcp.tick import app


@functions_framework.aio.http  # type: ignore[untyped-decorator]
async def tick(request: object) -> Function:
    """Answer a request by the tick."""
    return app
