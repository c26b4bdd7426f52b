"""An OpenTelemetry collector that receives OTLP over HTTP in protobuf, and keeps the data."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


@dataclass(frozen=True)
class ReceivedSpan:
    """A span as the collector received the span."""

    name: str
    trace: str
    span: str
    parent: str
    """The id of the parent, or "" without a parent."""
    started_ns: int
    ended_ns: int
    failure: str
    """The message of a failed span, or ""."""
    attributes: dict[str, Any]
    resource: dict[str, Any]


@dataclass
class OtlpReceiver:
    """The received data. `status` is the answer to each request."""

    url: str = ""
    status: int = 200
    requests: list[str] = field(default_factory=list)
    """The paths of all requests, also of refused requests."""
    headers: list[dict[str, str]] = field(default_factory=list)
    """The headers of all requests, with names in lower case."""
    moved_to: str = ""
    """The address to which a refusal with a status of 3xx redirects."""
    spans: list[ReceivedSpan] = field(default_factory=list)
    metrics: dict[str, dict[tuple[tuple[str, Any], ...], float]] = field(default_factory=dict)
    """The last value of each metric by name and sorted attributes."""
    monotonic: set[str] = field(default_factory=set)
    """The names of the metrics that were received as counters."""

    def add(self, path: str, body: bytes) -> bytes:
        """Keep the content of an accepted request, and return the answer."""
        if path == "/v1/traces":
            self._add_spans(ExportTraceServiceRequest.FromString(body))
            return bytes(ExportTraceServiceResponse().SerializeToString())
        assert path == "/v1/metrics", path
        self._add_metrics(ExportMetricsServiceRequest.FromString(body))
        return bytes(ExportMetricsServiceResponse().SerializeToString())

    def find_span(self, name: str) -> ReceivedSpan:
        """Return the only span with this name."""
        [span] = [span for span in self.spans if span.name == name]
        return span

    def _add_spans(self, request: Any) -> None:
        for part in request.resource_spans:
            resource = _values(part.resource.attributes)
            for span in (span for scope in part.scope_spans for span in scope.spans):
                self.spans.append(
                    ReceivedSpan(
                        span.name,
                        span.trace_id.hex(),
                        span.span_id.hex(),
                        span.parent_span_id.hex(),
                        span.start_time_unix_nano,
                        span.end_time_unix_nano,
                        span.status.message,
                        _values(span.attributes),
                        resource,
                    )
                )

    def _add_metrics(self, request: Any) -> None:
        for part in request.resource_metrics:
            for metric in (metric for scope in part.scope_metrics for metric in scope.metrics):
                kind = metric.WhichOneof("data")
                if kind == "sum" and metric.sum.is_monotonic:
                    self.monotonic.add(metric.name)
                points = self.metrics.setdefault(metric.name, {})
                for point in getattr(metric, kind).data_points:
                    labels = tuple(sorted(_values(point.attributes).items()))
                    points[labels] = point.as_double or float(point.as_int)


def _values(attributes: Any) -> dict[str, Any]:
    """Return attributes by name; a list of texts is a tuple."""
    found: dict[str, Any] = {}
    for attribute in attributes:
        kind = attribute.value.WhichOneof("value")
        value = getattr(attribute.value, kind)
        if kind == "array_value":
            value = tuple(item.string_value for item in value.values)
        found[attribute.key] = value
    return found


@contextmanager
def serve_otlp() -> Iterator[OtlpReceiver]:
    """Yield a running collector."""
    receiver = OtlpReceiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            assert self.headers["Content-Type"] == "application/x-protobuf"
            receiver.requests.append(self.path)
            receiver.headers.append({name.lower(): text for name, text in self.headers.items()})
            answer = receiver.add(self.path, body) if receiver.status == 200 else b""
            self.send_response(receiver.status)
            if receiver.moved_to:
                self.send_header("Location", f"{receiver.moved_to}{self.path}")
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
