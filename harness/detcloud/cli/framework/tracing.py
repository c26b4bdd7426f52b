"""The trace of a command, if the user exports traces to an OpenTelemetry collector.

Without a collector, a command imports no package of OpenTelemetry, and only passes on the trace of
the calling program.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
PARENT = "TRACEPARENT"
"""The variable with the trace context of the calling program."""
EXPORT_SECONDS_MAX = 5.0


@contextmanager
def trace_command(name: str) -> Iterator[str]:
    """Yield the trace context for the requests of a command, in the form of W3C Trace Context.

    With a collector, the block is a span, which is exported at the end of the block. Without a
    collector, or without the packages of OpenTelemetry, yield the value of TRACEPARENT, or "". An
    exception of the block marks the span as failed and is raised again. A collector that does not
    answer delays the end of the command by at most EXPORT_SECONDS_MAX.

    Args:
        name: the name of the span, such as `detcloud create`.
    """
    parent = os.environ.get(PARENT, "").strip()
    if not os.environ.get(ENDPOINT):
        yield parent
        return
    try:
        # The packages take 0.3 s, and few users have a collector.
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
    except ImportError as error:
        text = f"the command is not traced: {error}; install detcloud[telemetry]"
        print(text, file=sys.stderr)
        yield parent
        return
    service = os.environ.get("OTEL_SERVICE_NAME") or "detcloud-cli"
    provider = TracerProvider(resource=Resource.create({SERVICE_NAME: service}))
    exporter = OTLPSpanExporter(timeout=EXPORT_SECONDS_MAX)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    propagator = TraceContextTextMapPropagator()
    context = propagator.extract({"traceparent": parent})
    tracer = provider.get_tracer("detcloud")
    try:
        with tracer.start_as_current_span(name, context=context, kind=SpanKind.CLIENT):
            carrier: dict[str, str] = {}
            propagator.inject(carrier)
            yield carrier.get("traceparent", "")
    finally:
        provider.shutdown()
