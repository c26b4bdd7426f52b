"""The API on Cloud Run: `lambdas.gcp.api:app`.

Anyone may invoke this service: the application itself asks for a token or a signature.
"""

from lambdas.gcp.adapters import adapters, cluster
from lambdas.gcp.function import Receive, Scope, Send, header_map
from lambdas.gcp.telemetry import Telemetry

telemetry = Telemetry("api")
_answer = cluster.build_app(adapters.administrator_tokens())


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request; the application writes its line of the log."""
    if scope["type"] == "http":
        telemetry.begin_request(header_map(scope))
    await _answer(scope, receive, send)
