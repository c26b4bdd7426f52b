"""The network of instances: public subnets, so that there is no gateway to pay for while nothing
runs, and a security group that lets nobody from outside open a connection.
"""

import ipaddress
from collections.abc import Iterable
from typing import Any

import pulumi
import pulumi_aws as aws

from infra.aws.scope import Scope

CIDR = ipaddress.ip_network("10.77.0.0/16")
SUBNET_BITS = 20
ANYWHERE = "0.0.0.0/0"


def make_network(scope: Scope, instance_profile: Any) -> pulumi.Output[str]:
    """Make the network, and return DETCLOUD_NETWORK: the subnets, the security group and the
    profile of instances.
    """
    network = scope.settings.network
    if network is not None:
        subnets: dict[str, Any] = dict(network.subnets)
        group: Any = network.security_group
    else:
        subnets, group = _make_vpc(scope)
    description = {
        "subnets": subnets,
        "security_group": group,
        "instance_profile": instance_profile.arn,
        "placement_groups": _make_placement_groups(scope, subnets),
    }
    return pulumi.Output.json_dumps(description)


def _make_placement_groups(scope: Scope, zones: Iterable[str]) -> dict[str, Any]:
    """Make a cluster placement group for each zone, which costs nothing, and return their names."""
    groups = {
        zone: aws.ec2.PlacementGroup(
            f"gangs-{zone}",
            name=scope.names.part(f"gangs-{zone}"),
            strategy="cluster",
            tags=scope.tags(f"gangs-{zone}"),
            opts=scope.options(),
        )
        for zone in zones
    }
    return {zone: group.name for zone, group in groups.items()}


def _make_vpc(scope: Scope) -> tuple[dict[str, Any], Any]:
    vpc = aws.ec2.Vpc(
        "network",
        cidr_block=str(CIDR),
        enable_dns_support=True,
        enable_dns_hostnames=True,
        tags=scope.tags("network"),
        opts=scope.options(),
    )
    routes = _make_routes(scope, vpc)
    subnets = {}
    blocks = list(CIDR.subnets(new_prefix=SUBNET_BITS))
    for zone in scope.settings.zones:
        # By its letter, so that a zone that is added or left out moves no other subnet.
        block = blocks[ord(zone[-1]) - ord("a")]
        subnet = aws.ec2.Subnet(
            zone,
            vpc_id=vpc.id,
            availability_zone=zone,
            cidr_block=str(block),
            map_public_ip_on_launch=True,
            tags=scope.tags(zone),
            opts=scope.options(),
        )
        aws.ec2.RouteTableAssociation(
            zone, subnet_id=subnet.id, route_table_id=routes.id, opts=scope.options()
        )
        subnets[zone] = subnet.id
    return subnets, _make_security_group(scope, vpc).id


def _make_routes(scope: Scope, vpc: Any) -> Any:
    gateway = aws.ec2.InternetGateway(
        "gateway", vpc_id=vpc.id, tags=scope.tags("gateway"), opts=scope.options()
    )
    routes = aws.ec2.RouteTable(
        "routes", vpc_id=vpc.id, tags=scope.tags("routes"), opts=scope.options()
    )
    aws.ec2.Route(
        "out",
        route_table_id=routes.id,
        destination_cidr_block=ANYWHERE,
        gateway_id=gateway.id,
        opts=scope.options(),
    )
    # Checkpoints go through this endpoint, which is free.
    aws.ec2.VpcEndpoint(
        "s3",
        vpc_id=vpc.id,
        vpc_endpoint_type="Gateway",
        service_name=f"com.amazonaws.{scope.settings.region}.s3",
        route_table_ids=[routes.id],
        tags=scope.tags("s3"),
        opts=scope.options(),
    )
    return routes


def _make_security_group(scope: Scope, vpc: Any) -> Any:
    group = aws.ec2.SecurityGroup(
        "instances",
        name=scope.names.part("instances"),
        description="Instances of the cluster: a gang speaks to itself, nobody else to it",
        vpc_id=vpc.id,
        tags=scope.tags("instances"),
        opts=scope.options(),
    )
    aws.vpc.SecurityGroupIngressRule(
        "within",
        security_group_id=group.id,
        referenced_security_group_id=group.id,
        ip_protocol="-1",
        tags=scope.tags("within"),
        opts=scope.options(),
    )
    # Traffic between Elastic Fabric Adapters is let through by rules between members alone.
    aws.vpc.SecurityGroupEgressRule(
        "among",
        security_group_id=group.id,
        referenced_security_group_id=group.id,
        ip_protocol="-1",
        tags=scope.tags("among"),
        opts=scope.options(),
    )
    aws.vpc.SecurityGroupEgressRule(
        "out",
        security_group_id=group.id,
        cidr_ipv4=ANYWHERE,
        ip_protocol="-1",
        tags=scope.tags("out"),
        opts=scope.options(),
    )
    return group
