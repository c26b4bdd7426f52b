"""The export of stored spans by OTLP over HTTP.

The rows of spans are deleted after the collector has accepted the spans. A process that is killed
in between exports the spans again, with equal ids.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from control_plane.actors.spans import (
    RUN,
    SPANS,
    RunSpans,
    Span,
    TraceParent,
    decode_spans,
    parse_traceparent,
    span_id,
)
from control_plane.state.table import Delete, Expect, Row, StateTable
from control_plane.telemetry.endpoint import SECONDS_MAX
from control_plane.telemetry.resource import cluster_resource
from control_plane.telemetry.sending import SENDER, explicit_headers, open_session

log = logging.getLogger(__name__)

ROWS_MAX = 100
"""The most rows of an export, as many as a commit can delete."""
_NS_PER_MS = 1_000_000


def export_spans(
    table: StateTable, cluster_id: str, version: str, headers: Mapping[str, str]
) -> int:
    """Export at most ROWS_MAX rows of spans, the oldest first. Return the number of deleted rows.

    A row that cannot be decoded is logged and deleted. Requests have the additional `headers`.

    Raises:
        ExportFailed: the collector did not accept the spans. No row was deleted.
        TableError: the state table failed.
    """
    rows = table.query(SPANS, " ", "\x7f", limit=ROWS_MAX).rows
    if not rows:
        return 0
    resource, scope = cluster_resource(cluster_id, version), InstrumentationScope("detcloud")
    spans = [span for row in rows for span in _spans_of_row(row, resource, scope)]
    if spans:
        SENDER.send(partial(_send, spans, headers), f"{len(spans)} spans")
    # Of two concurrent exports, both may delete a row.
    table.commit([Delete(row.key, Expect.ANYTHING) for row in rows])
    return len(rows)


def _send(spans: Sequence[ReadableSpan], headers: Mapping[str, str]) -> bool:
    """Send spans to the collector. Return whether the collector accepted the spans."""
    session = open_session()
    exporter = OTLPSpanExporter(
        timeout=SECONDS_MAX, headers=explicit_headers(headers), session=session
    )
    try:
        return exporter.export(spans) is SpanExportResult.SUCCESS
    finally:
        exporter.shutdown()  # type: ignore[no-untyped-call]


def _spans_of_row(
    row: Row, resource: Resource, scope: InstrumentationScope
) -> Iterator[ReadableSpan]:
    """Yield the spans of a row. Yield nothing for a row that cannot be decoded."""
    try:
        stored = decode_spans(row.body)
        parent = parse_traceparent(stored.traceparent)
    except (ValueError, TypeError) as error:
        log.warning("spans of %s cannot be decoded: %s", row.key.sort, error)
        return
    if parent is not None:
        for span in stored.spans:
            yield _readable_span(stored, parent, span, resource, scope)


def _readable_span(
    stored: RunSpans,
    parent: TraceParent,
    span: Span,
    resource: Resource,
    scope: InstrumentationScope,
) -> ReadableSpan:
    """Return a span for the exporter.

    The parent of a run is the span of the submission. The parent of another span is the run.
    """
    run = span_id(parent.trace, stored.trial, stored.epoch, RUN)
    is_run = span.name == RUN
    own = run if is_run else span_id(parent.trace, stored.trial, stored.epoch, span.name)
    return ReadableSpan(
        name=f"{span.name} of trial {stored.trial}",
        context=_context(parent.trace, own, is_remote=False),
        parent=_context(parent.trace, parent.span if is_run else run, is_remote=True),
        resource=resource,
        attributes={
            "detcloud.experiment": stored.experiment,
            "detcloud.trial": stored.trial,
            "detcloud.run": stored.epoch,
            "detcloud.pool": stored.pool,
            "detcloud.agents": stored.agents,
            "detcloud.phase": span.name,
        },
        kind=SpanKind.INTERNAL,
        status=Status(StatusCode.ERROR, span.failure) if span.failure else Status(),
        start_time=span.started_ms * _NS_PER_MS,
        end_time=span.ended_ms * _NS_PER_MS,
        instrumentation_scope=scope,
    )


def _context(trace: str, span: str, *, is_remote: bool) -> SpanContext:
    """Return the context of a span with hexadecimal ids."""
    flags = TraceFlags(TraceFlags.SAMPLED)
    return SpanContext(int(trace, 16), int(span, 16), is_remote=is_remote, trace_flags=flags)
