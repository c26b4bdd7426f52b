"""Compute Engine instances for the pools of a cluster. The functions may run in any cloud."""

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
    """The stack's defaults for the place of instances, for settings that a pool does not name."""

    project: str
    """The id of the project."""
    region: str
    """The region of pools that name none."""
    network: Mapping[str, Any]
    """The stack's value of DETCLOUD_NETWORK, in the form that `add_deployment` expects."""


def open_clouds(
    parts: HostParts,
    place: DeployedPlace,
    code_place: str,
    *,
    compute: Callable[[], GoogleApi] = create_compute_api,
    billing: Callable[[], GoogleApi] = create_billing_api,
) -> GceClouds:
    """Return the Compute Engine providers of a cluster's pools.

    No request is sent yet. Before a boot script is rendered, the agent's code is written to the
    object store.

    Args:
        parts: the id, URL, clock and calls of the cluster's host.
        place: the defaults of the stack.
        code_place: the URL of the folder from which instances download the agent's code. "" if
            instances request the code from the cluster.
        compute: returns a client of the Compute Engine API.
        billing: returns a client of the Cloud Billing API, for prices.
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
