"""The launch requests that the tick will send for pools on Google Cloud. Pure."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from control_plane.config.pools import ClusterConfig
from control_plane.fleet.records import IntentRow, Offering
from infra.gcp.names import Names
from infra.gcp.pool_checks import gcp_pools
from infra.gcp.settings import Settings
from provisioner.clouds.gcp.deployment import add_deployment
from provisioner.clouds.gcp.launch_request import (
    instance_properties,
    launch_zone,
    parse_section,
)
from provisioner.clouds.provider import CLUSTER_TAG, CloudError
from provisioner.settings import SettingsInvalid, parse_provider_settings


class PoolLaunch(NamedTuple):
    """The launch request of an offering."""

    pool: str
    """The name of the pool."""
    instance_type: str
    """The offering's type, with attached accelerators."""
    project: str
    """The project of the instances."""
    region: str
    """The region of the instances."""
    zone: str
    """The only zone, or "" for any zone of the region."""
    properties: Mapping[str, Any]
    """The properties of each instance, in Compute Engine's form."""
    problem: str = ""
    """Why the request cannot be made; `properties` is empty then."""


def stack_defaults(settings: Settings) -> dict[str, Any]:
    """Return the defaults of launches in the stack, in the form of `add_deployment`."""
    names, given = settings.names, settings.network
    own = {region: names.subnetwork_path(region) for region in settings.subnetwork_regions}
    return {
        "network": given.network if given else names.network_path,
        "subnetworks": dict(given.subnetworks) if given else own,
        "tags": list(given.tags) if given else [names.cluster],
        **({} if given else {"public_ip": settings.gives_addresses}),
        "service_account": names.email("instance"),
        "labels": {**settings.labels, CLUSTER_TAG: names.cluster},
        "name_prefix": names.instance_prefix,
        "kms_key": settings.kms_key or "",
    }


def list_launches(
    names: Names, cluster: ClusterConfig, defaults: Mapping[str, Any]
) -> list[PoolLaunch]:
    """Return the launch request of each offering of each pool on Google Cloud.

    A pool without offerings has a single request, of the pool's default type. A request that cannot
    be made has a `problem`. The boot script, which no policy checks, is left out.

    Args:
        names: the names of the cluster, with the project and the region of pools that name none.
        cluster: the configuration of the pools.
        defaults: the defaults of launches, like those of `stack_defaults`.
    """
    launches = []
    for pool, provider in gcp_pools(cluster):
        try:
            parsed = parse_provider_settings(provider.to_json())
            settings = add_deployment(
                parse_section(parsed.section), defaults, names.project, names.region
            )
            offerings = parsed.offerings or (settings.default_offering(),)
        except (CloudError, SettingsInvalid) as error:
            launches.append(PoolLaunch(pool, "", names.project, "", "", {}, str(error)))
            continue
        for offering in offerings:
            request = _request(names, pool, offering, parsed.section)
            place = settings.project, settings.place
            try:
                properties = instance_properties(request, settings, b"")
                zone = launch_zone(request, settings)
                launch = PoolLaunch(pool, offering.instance_type, *place, zone, properties)
            except CloudError as error:
                launch = PoolLaunch(pool, offering.instance_type, *place, "", {}, str(error))
            launches.append(launch)
    return launches


def _request(names: Names, pool: str, offering: Offering, section: str) -> IntentRow:
    """Return a launch attempt with a single instance of an offering."""
    return IntentRow("check", names.cluster, pool, offering, 1, "check", 0, section)
