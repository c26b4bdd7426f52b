"""A pass that exports the stored spans and the metrics of a cluster."""

import logging

from control_plane.services import Services
from control_plane.telemetry.endpoint import PACKAGES, ExportFailed

log = logging.getLogger(__name__)


def export_telemetry(services: Services) -> None:
    """Export the stored spans, then the metrics.

    A refusal of the collector and missing packages are logged as warnings: a collector that is away
    must not raise the alarms of the cluster. The next pass exports the spans again. Raises
    TableError, and RequestError unavailable if a pool changes too fast to be read.
    """
    try:
        # Imported by clusters with a collector only: the packages of OpenTelemetry take 0.3 s.
        from control_plane.telemetry.metric_export import export_metrics
        from control_plane.telemetry.span_export import export_spans
    except ImportError as error:
        log.warning("no telemetry is exported: %s; install %s", error, PACKAGES)
        return
    from control_plane.monitoring.cluster_metrics import ClusterMetrics

    cluster_id, version = services.cluster_id, services.version
    try:
        export_spans(services.table, cluster_id, version)
    except ExportFailed as error:
        log.warning("spans were not exported: %s", error)
    # Some collectors accept metrics only.
    samples = services.cache_of(ClusterMetrics).read(services)
    try:
        export_metrics(samples, cluster_id, version, services.now_ms())
    except ExportFailed as error:
        log.warning("metrics were not exported: %s", error)
