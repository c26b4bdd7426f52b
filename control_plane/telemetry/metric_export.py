"""The export of the cluster's metrics by OTLP over HTTP."""

from collections.abc import Iterable, Mapping
from functools import partial

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from control_plane.monitoring.families import Family, Sample
from control_plane.telemetry.endpoint import SECONDS_MAX
from control_plane.telemetry.resource import cluster_resource
from control_plane.telemetry.sending import SENDER, explicit_headers, open_session

_NS_PER_MS = 1_000_000


def export_metrics(
    samples: Iterable[Sample],
    cluster_id: str,
    version: str,
    now_ms: int,
    headers: Mapping[str, str],
) -> None:
    """Export the samples of `ClusterMetrics`. The names are those of Prometheus.

    Requests have the additional `headers`.

    Raises:
        ExportFailed: the collector did not accept the metrics.
    """
    data = metrics_data(samples, cluster_resource(cluster_id, version), now_ms)
    SENDER.send(partial(_send, data, headers), "the metrics")


def metrics_data(samples: Iterable[Sample], resource: Resource, now_ms: int) -> MetricsData:
    """Convert samples to the exporter's records."""
    points: dict[Family, list[NumberDataPoint]] = {}
    time_ns = now_ms * _NS_PER_MS
    for family, labels, value in samples:
        attributes = dict(zip(family.labels, labels, strict=True))
        # The rows do not record the start of a counter.
        point = NumberDataPoint(attributes, 0, time_ns, value)
        points.setdefault(family, []).append(point)
    metrics = [_metric(family, found) for family, found in points.items()]
    scope = ScopeMetrics(InstrumentationScope("detcloud"), metrics, "")
    return MetricsData([ResourceMetrics(resource, [scope], "")])


def _send(data: MetricsData, headers: Mapping[str, str]) -> bool:
    """Send metrics to the collector. Return whether the collector accepted the metrics."""
    session = open_session()
    exporter = OTLPMetricExporter(
        timeout=SECONDS_MAX, headers=explicit_headers(headers), session=session
    )
    try:
        return exporter.export(data) is MetricExportResult.SUCCESS
    finally:
        exporter.shutdown()


def _metric(family: Family, points: list[NumberDataPoint]) -> Metric:
    """Return a metric with all points: a sum for a counter, else a gauge."""
    data: Sum | Gauge = Gauge(points)
    if family.kind == "counter":
        data = Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=True)
    return Metric(family.name, family.meaning, "", data)
