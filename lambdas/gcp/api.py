"""The API on Cloud Run: `lambdas.gcp.api:app`.

Cloud Run lets anyone invoke this service. The application itself requires a token or a signature.
"""

from lambdas.gcp.adapters import adapters, cluster
from lambdas.gcp.function import Receive, Scope, Send, caller_scope, header_map
from lambdas.gcp.telemetry import Telemetry

telemetry = Telemetry("api")
_answer = cluster.build_app(adapters.administrator_tokens())


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Pass an ASGI request to the application.

    For HTTP, undo the changes of Google's front (`caller_scope`), and assign the log lines of the
    request to the trace in the headers. Other scopes stay unchanged. Errors of the application are
    passed on to the server.
    """
    if scope["type"] == "http":
        telemetry.begin_request(header_map(scope))
        scope = caller_scope(scope)
    await _answer(scope, receive, send)
