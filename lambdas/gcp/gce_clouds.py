"""Compute Engine for the pools of a cluster, whose functions may run in any cloud."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from control_plane.fleet.records import IntentRow
from lambdas.gcp.boot import startup_script
from lambdas.other_clouds import HostParts
from provisioner.clouds.gcp.billing_catalog import BillingCatalog
from provisioner.clouds.gcp.deployment import add_deployment
from provisioner.clouds.gcp.google_api import GoogleApi, create_billing_api, create_compute_api
from provisioner.clouds.gcp.provider import GceClouds


@dataclass(frozen=True)
class DeployedPlace:
    """The place that was deployed for instances: pools that name no other project, region or
    network have it. `network` is as `add_deployment` takes it.
    """

    project: str
    region: str
    network: Mapping[str, Any]


def open_clouds(
    parts: HostParts,
    place: DeployedPlace,
    code_place: str,
    *,
    compute: Callable[[], GoogleApi] = create_compute_api,
    billing: Callable[[], GoogleApi] = create_billing_api,
) -> GceClouds:
    """Open Compute Engine. `code_place` is the URL below which instances fetch their code, "" where
    they ask the cluster for it.
    """
    script = startup_script(parts.api_url, parts.cluster_id, code_place)

    def render_script(request: IntentRow) -> bytes:
        parts.keep_agent_code()
        return script(request)

    return GceClouds(
        render_script,
        parts.clock,
        complete_settings=lambda settings: add_deployment(
            settings, place.network, place.project, place.region
        ),
        api=compute,
        prices=BillingCatalog(billing, parts.clock),
    )
