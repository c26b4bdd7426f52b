"""The network of instances: a subnetwork in each region, without connections from outside.

With the setting `private_subnets`, instances have no public address and connect through Cloud NAT,
which costs money all the time.
"""

from collections.abc import Mapping
from typing import Any

import pulumi
from pulumi_gcp import compute

from infra.gcp.ranges import subnetwork_ranges
from infra.gcp.scope import Scope


def make_subnetworks(scope: Scope) -> tuple[Any, Mapping[str, Any]]:
    """Create the network, or use the setting `network`; return (network, subnetworks by region).

    With the setting `network`, create nothing. With `private_subnets`, also create Cloud NAT in
    each region. The firewall allows incoming connections among instances only.
    """
    given = scope.settings.network
    if given is not None:
        return given.network, dict(given.subnetworks)
    network = compute.Network(
        "network",
        project=scope.settings.project,
        name=scope.names.part("network"),
        description=scope.names.cluster,
        auto_create_subnetworks=False,
        routing_mode="REGIONAL",
        # Google's maximum, for traffic between the instances of a trial.
        mtu=8896,
        opts=scope.options(),
    )
    subnetworks = {}
    regions = scope.settings.subnetwork_regions
    for region, block in zip(regions, subnetwork_ranges(), strict=False):
        subnetworks[region] = _make_subnetwork(scope, network, region, block)
        if scope.settings.private_subnets:
            _make_way_out(scope, network, region)
    _make_firewall(scope, network)
    return network.id, {region: subnetwork.id for region, subnetwork in subnetworks.items()}


def describe_network(
    scope: Scope, network: Any, subnetworks: Mapping[str, Any], account: Any
) -> pulumi.Output[str]:
    """Return the JSON of the tick's variable DETCLOUD_NETWORK.

    The JSON contains network, subnetworks and the defaults of every instance: firewall tags, the
    service account `account`, labels, name prefix and disk key.
    """
    settings, given = scope.settings, scope.settings.network
    description = {
        "network": network,
        "subnetworks": dict(subnetworks),
        "tags": list(given.tags) if given else [scope.names.cluster],
        **({} if given else {"public_ip": not settings.private_subnets}),
        "service_account": account,
        "labels": scope.labels,
        # The tick's permissions depend on the names of instances.
        "name_prefix": scope.names.instance_prefix,
        **({"kms_key": settings.kms_key} if settings.kms_key else {}),
    }
    return pulumi.Output.json_dumps(description)


def _make_subnetwork(scope: Scope, network: Any, region: str, block: str) -> Any:
    """Create and return a subnetwork of a region with the addresses `block`."""
    return compute.Subnetwork(
        region,
        project=scope.settings.project,
        name=scope.names.part(region),
        description=scope.names.cluster,
        network=network.id,
        region=region,
        ip_cidr_range=block,
        # Instances reach Cloud Storage free of charge, without a public address.
        private_ip_google_access=True,
        opts=scope.options(),
    )


def _make_way_out(scope: Scope, network: Any, region: str) -> None:
    """Create a router with Cloud NAT for all subnetworks of a region."""
    router = compute.Router(
        region,
        project=scope.settings.project,
        name=scope.names.part(region),
        network=network.id,
        region=region,
        opts=scope.options(),
    )
    compute.RouterNat(
        region,
        project=scope.settings.project,
        name=scope.names.part(region),
        router=router.name,
        region=region,
        nat_ip_allocate_option="AUTO_ONLY",
        source_subnetwork_ip_ranges_to_nat="ALL_SUBNETWORKS_ALL_IP_RANGES",
        opts=scope.options(),
    )


def _make_firewall(scope: Scope, network: Any) -> None:
    """Create the rule that allows connections among instances with the cluster's tag.

    Without any rule, a network refuses incoming connections and allows outgoing ones.
    """
    tag = scope.names.cluster
    compute.Firewall(
        "within",
        project=scope.settings.project,
        network=network.id,
        direction="INGRESS",
        name=scope.names.part("within"),
        description="A gang speaks to itself, nobody else to it",
        source_tags=[tag],
        target_tags=[tag],
        allows=[{"protocol": "all"}],
        opts=scope.options(),
    )
