"""Google's front of a Cloud Run service, which replaces the trace context of each request.

The front keeps the id of the caller's trace, and replaces the caller's span and the sampled flag.
A request without a trace gets a new trace. https://cloud.google.com/run/docs/trace says that the
front sets the header, and https://github.com/elastic/apm/issues/609 shows a changed request.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from control_plane.actors.spans import parse_traceparent
from tests.emulators.http_server import serve_requests
from tests.emulators.passing_front import PassingHandler


@contextmanager
def google_front(service: str) -> Iterator[str]:
    """Yield the URL of a front of the service at `service`. The front samples each request."""
    handler: Any = type("Handler", (_Handler,), {"store": service})
    with serve_requests(handler) as address:
        handler.url = f"http://{address}"
        yield handler.url


class _Handler(PassingHandler):
    def handle_request(self, *, is_write: bool) -> None:
        body = self.read_body(int(self.headers.get("Content-Length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        parent = parse_traceparent(headers.get("traceparent", ""))
        trace = parent.trace if parent else secrets.token_hex(16)
        span = secrets.token_hex(8)
        headers["traceparent"] = f"00-{trace}-{span}-01"
        headers["x-cloud-trace-context"] = f"{trace}/{int(span, 16)};o=1"
        headers["content-length"] = str(len(body))
        self.answer(*self.ask_store(self.path, body, headers))
