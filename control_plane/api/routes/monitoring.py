"""The route by which Prometheus and similar systems read the metrics of the cluster."""

from typing import Annotated

from fastapi import Header, Response

from control_plane.access.principals import USER_ROLES, Role
from control_plane.api.dependencies import ServicesParameter
from control_plane.api.route_guards import guarded_router, require_role

router = guarded_router("monitoring")

ACCEPT_CHARACTERS_MAX = 1_000


@router.get("/metrics", response_class=Response)
@require_role(*USER_ROLES, Role.METRICS)
def read_metrics(
    services: ServicesParameter,
    accept: Annotated[str, Header(max_length=ACCEPT_CHARACTERS_MAX)] = "",
) -> Response:
    """Return the metrics of the cluster for Prometheus; docs/monitoring.md lists the metrics.

    The format is OpenMetrics if the Accept header names it, else the text format 0.0.4. The figures
    are at most 15 s old. Error: `unavailable` if a pool changes too fast to be read.
    """
    # Imported by the first scrape: the library takes 0.1 s, which would lengthen the start of the
    # other requests (bench/cold_starts.py).
    from control_plane.monitoring.cluster_metrics import ClusterMetrics
    from control_plane.monitoring.exposition import render_metrics

    samples = services.cache_of(ClusterMetrics).read(services)
    answer = render_metrics(samples, accept)
    return Response(answer.content, headers={"Content-Type": answer.media_type})
