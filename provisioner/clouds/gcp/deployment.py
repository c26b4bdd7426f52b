"""Settings of pools with what a deployment on Google Cloud knows and they do not say."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from provisioner.clouds.gcp.launch_request import AccountSettings, GceSettings, NetworkSettings


def add_deployment(
    settings: GceSettings, deployed: Mapping[str, Any], project: str, region: str
) -> GceSettings:
    """Add to a pool's settings what the deployment has: its project and region, and of `deployed`
    `network`, `subnetworks` by region, `tags`, `public_ip`, `service_account`, `labels`, `kms_key`,
    `name_prefix`.

    A pool that names a network of its own has that one, and none of the deployment's tags, which
    the firewall rules of the deployment's network go by.
    """
    settings = replace(
        settings,
        project=settings.project or project,
        region=settings.region or ("" if settings.zone else region),
        name_prefix=settings.name_prefix or deployed.get("name_prefix", ""),
    )
    own = settings.network_interface
    if not (own.network or own.subnetwork):
        subnetworks: Mapping[str, str] = deployed.get("subnetworks", {})
        network = NetworkSettings(
            network=deployed.get("network", ""),
            subnetwork=subnetworks.get(settings.place, ""),
            # In private subnetworks a public address would lead nowhere.
            external_ip=bool(deployed.get("public_ip", own.external_ip)),
        )
        tags = (*deployed.get("tags", ()), *settings.network_tags)
        settings = replace(settings, network_interface=network, network_tags=tags)
    account = settings.service_account
    if not account.email:
        account = AccountSettings(deployed.get("service_account", ""), account.scopes)
    return replace(
        settings,
        service_account=account,
        labels=deployed.get("labels", {}),
        kms_key=deployed.get("kms_key", ""),
    )
