"""The completion of pools' settings with the values of a deployment on Google Cloud."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from provisioner.clouds.gcp.launch_request import AccountSettings, GceSettings, NetworkSettings


def add_deployment(
    settings: GceSettings, deployed: Mapping[str, Any], project: str, region: str
) -> GceSettings:
    """Return a pool's settings, completed with the deployment's values; `settings` is unchanged.

    - `project`, `name_prefix`: the pool's value, or else the deployment's.
    - `region`: the pool's, or else the deployment's, but "" for a pool with a zone.
    - `network_interface`, `network_tags`: see `_with_network`.
    - `service_account`: the pool's, or else the deployment's with the pool's scopes.
    - `labels`, `kms_key`: the deployment's.

    A value that neither has is "" or empty; a missing project is no error here.

    Args:
        settings: the pool's settings.
        deployed: the deployment's `network`, `subnetworks` by region, `tags`, `public_ip`,
            `service_account`, `labels`, `kms_key` and `name_prefix`; all may be missing.
        project: the deployment's project.
        region: the deployment's region.

    Raises:
        ConfigurationError: neither the pool nor the deployment names a region or zone, and the pool
            has no own network.
    """
    settings = replace(
        settings,
        project=settings.project or project,
        region=settings.region or ("" if settings.zone else region),
        name_prefix=settings.name_prefix or deployed.get("name_prefix", ""),
    )
    account = settings.service_account
    if not account.email:
        account = AccountSettings(deployed.get("service_account", ""), account.scopes)
    return replace(
        _with_network(settings, deployed),
        service_account=account,
        labels=deployed.get("labels", {}),
        kms_key=deployed.get("kms_key", ""),
    )


def _with_network(settings: GceSettings, deployed: Mapping[str, Any]) -> GceSettings:
    """Return the settings with the deployment's network, unless the pool names a network.

    - The pool names a network or subnetwork: all network settings and tags stay.
    - Otherwise the network and the subnetwork of the pool's region are the deployment's. The
      deployment also decides on public addresses; without `public_ip`, the pool decides. The
      deployment's network tags, which select firewall rules, precede the pool's tags.

    Raises ConfigurationError for a pool without an own network and without a region or zone.
    """
    own = settings.network_interface
    if own.network or own.subnetwork:
        return settings
    subnetworks: Mapping[str, str] = deployed.get("subnetworks", {})
    network = NetworkSettings(
        network=deployed.get("network", ""),
        subnetwork=subnetworks.get(settings.place, ""),
        # The deployment decides: a public address does not work in private subnetworks.
        external_ip=bool(deployed.get("public_ip", own.external_ip)),
    )
    tags = (*deployed.get("tags", ()), *settings.network_tags)
    return replace(settings, network_interface=network, network_tags=tags)
