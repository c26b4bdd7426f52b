"""The completion of pools' settings with the values of a deployment on Google Cloud."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from provisioner.clouds.gcp.launch_request import AccountSettings, GceSettings, NetworkSettings


def add_deployment(
    settings: GceSettings, deployed: Mapping[str, Any], project: str, region: str
) -> GceSettings:
    """Return a pool's settings, completed with the deployment's values; `settings` is unchanged.

    The pool's project, region or zone, name prefix and service account take precedence. A pool with
    its own network keeps its network settings. Any other pool gets the deployment's network and
    choice of public addresses, and additionally the deployment's network tags, which select the
    firewall rules of that network. Labels and the KMS key are the deployment's. A value that
    neither has is "" or empty; a missing project is no error here.

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
    own = settings.network_interface
    if not (own.network or own.subnetwork):
        subnetworks: Mapping[str, str] = deployed.get("subnetworks", {})
        network = NetworkSettings(
            network=deployed.get("network", ""),
            subnetwork=subnetworks.get(settings.place, ""),
            # The deployment decides: a public address does not work in private subnetworks.
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
