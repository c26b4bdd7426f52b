"""A pass that exports the stored spans and the metrics of a cluster."""

import logging
import time
from collections.abc import Mapping
from typing import Final

from control_plane.errors import RequestError
from control_plane.services import Services
from control_plane.telemetry.endpoint import PACKAGES, ExportFailed

log = logging.getLogger(__name__)

SPAN_SECONDS_MAX: Final = 5.0
"""The time after which a pass begins no further export of spans."""


def export_telemetry(services: Services, headers: Mapping[str, str]) -> None:
    """Export the stored spans, then the metrics, in requests with the additional `headers`.

    A refusal of the collector and missing packages are logged as warnings: a collector that is away
    must not raise the alarms of the cluster. The next pass exports the spans again. Raises
    TableError.
    """
    try:
        # Imported by clusters with a collector only: the packages of OpenTelemetry take 0.3 s.
        from control_plane.telemetry.metric_export import export_metrics
        from control_plane.telemetry.span_export import ROWS_MAX, export_spans
    except ImportError as error:
        log.warning("no telemetry is exported: %s; install %s", error, PACKAGES)
        return
    from control_plane.monitoring.cluster_metrics import ClusterMetrics

    cluster_id, version = services.cluster_id, services.version
    until = time.monotonic() + SPAN_SECONDS_MAX
    try:
        while export_spans(services.table, cluster_id, version, headers) == ROWS_MAX:
            if time.monotonic() > until:
                break
    except ExportFailed as error:
        log.warning("spans were not exported: %s", error)
    # Some collectors accept metrics only.
    try:
        samples = services.cache_of(ClusterMetrics).read(services)
        export_metrics(samples, cluster_id, version, services.now_ms(), headers)
    except (ExportFailed, RequestError) as error:
        log.warning("metrics were not exported: %s", error)
