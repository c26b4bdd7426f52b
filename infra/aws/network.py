"""The network of instances: subnets and a security group without connections from outside.

By default, subnets are public, because a NAT gateway would cost money while nothing runs. With the
setting `private_subnets`, instances have no public address and connect through a NAT gateway.
"""

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_aws as aws

from infra.aws.scope import Scope
from infra.aws.settings import Settings

CIDR = ipaddress.ip_network("10.77.0.0/16")
SUBNET_BITS = 20
ANYWHERE = "0.0.0.0/0"


@dataclass(frozen=True)
class Vpc:
    """The stack's own VPC."""

    id: Any
    subnets: Mapping[str, Any]
    """The ids of the instances' subnets by zone."""
    group: Any
    """The id of the instances' security group."""
    public_subnets: tuple[Any, ...]
    """The ids of the subnets with a route to the internet gateway."""


def make_network(scope: Scope, instance_profile: Any, vpc: Vpc | None) -> pulumi.Output[str]:
    """Create the placement groups, and return the JSON of the tick's variable DETCLOUD_NETWORK.

    Instances use the network of the setting `network`, or without the setting the stack's own
    `vpc`. The JSON contains the subnets by zone, the security group, the instance profile's ARN,
    the placement groups by zone and the defaults of instances.
    """
    network = scope.settings.network
    if network is not None:
        subnets: dict[str, Any] = dict(network.subnets)
        group: Any = network.security_group
    else:
        assert vpc is not None
        subnets, group = dict(vpc.subnets), vpc.group
    description = {
        "subnets": subnets,
        "security_group": group,
        "instance_profile": instance_profile.arn,
        "placement_groups": _make_placement_groups(scope, subnets),
        **instance_defaults(scope.settings),
    }
    return pulumi.Output.json_dumps(description)


def _make_placement_groups(scope: Scope, zones: Iterable[str]) -> dict[str, Any]:
    """Create a cluster placement group, free of charge, in each zone; return the names by zone."""
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


def instance_defaults(settings: Settings) -> dict[str, Any]:
    """Return the set values among the settings that apply to every instance.

    The keys are `public_ip` (only False), `session_manager` (only True), `kms_key` and `tags`.
    """
    return {
        **({"public_ip": False} if settings.private_subnets else {}),
        **({"session_manager": True} if settings.session_manager else {}),
        **({"kms_key": settings.kms_key} if settings.kms_key else {}),
        **({"tags": dict(settings.tags)} if settings.tags else {}),
    }


def make_vpc(scope: Scope) -> Vpc | None:
    """Create the VPC with all parts. Create nothing and return None with the setting `network`.

    The VPC gets a subnet for each zone of the settings, routes out, an endpoint of S3, the security
    group and the `endpoints` of the settings. Private subnets also get a NAT gateway.
    """
    if scope.settings.network is not None:
        return None
    vpc = aws.ec2.Vpc(
        "network",
        cidr_block=str(CIDR),
        enable_dns_support=True,
        enable_dns_hostnames=True,
        tags=scope.tags("network"),
        opts=scope.options(),
    )
    settings, blocks = scope.settings, list(CIDR.subnets(new_prefix=SUBNET_BITS))
    gateway = aws.ec2.InternetGateway(
        "gateway", vpc_id=vpc.id, tags=scope.tags("gateway"), opts=scope.options()
    )
    is_public = not settings.private_subnets
    way_out = {"gateway_id": gateway.id} if is_public else {}
    # A subnet's block depends on the zone's letter, so adding or removing zones moves no subnet.
    places = {zone: blocks[ord(zone[-1]) - ord("a")] for zone in settings.zones}
    exit_subnet = None
    if not is_public:
        nat, exit_subnet = _make_nat_gateway(scope, vpc, gateway, blocks[-1])
        way_out = {"nat_gateway_id": nat.id}
    routes = _make_routes(scope, vpc, "routes", way_out)
    _make_s3_endpoint(scope, vpc, routes)
    subnets = {
        zone: _make_subnet(scope, vpc, zone, zone, block, routes, is_public=is_public).id
        for zone, block in places.items()
    }
    group = _make_security_group(scope, vpc)
    for service in settings.endpoints:
        _make_endpoint(scope, vpc, service, list(subnets.values()), group)
    public = tuple(subnets.values()) if exit_subnet is None else (exit_subnet.id,)
    return Vpc(vpc.id, subnets, group.id, public)


def _make_subnet(
    scope: Scope, vpc: Any, name: str, zone: str, block: Any, routes: Any, *, is_public: bool
) -> Any:
    """Create and return a subnet with the addresses `block`, associated with the routes.

    Instances in a public subnet get a public address by default.
    """
    subnet = aws.ec2.Subnet(
        name,
        vpc_id=vpc.id,
        availability_zone=zone,
        cidr_block=str(block),
        map_public_ip_on_launch=is_public,
        tags=scope.tags(name),
        opts=scope.options(),
    )
    aws.ec2.RouteTableAssociation(
        name, subnet_id=subnet.id, route_table_id=routes.id, opts=scope.options()
    )
    return subnet


def _make_nat_gateway(scope: Scope, vpc: Any, gateway: Any, block: Any) -> tuple[Any, Any]:
    """Create a NAT gateway with an address and routes. Return the gateway and its public subnet.

    The public subnet gets the addresses `block` and lies in the settings' first zone. `gateway` is
    the VPC's internet gateway.
    """
    routes = _make_routes(scope, vpc, "public-routes", {"gateway_id": gateway.id})
    zone = scope.settings.zones[0]
    subnet = _make_subnet(scope, vpc, "way-out", zone, block, routes, is_public=True)
    address = aws.ec2.Eip(
        "way-out", domain="vpc", tags=scope.tags("way-out"), opts=scope.options([gateway])
    )
    nat = aws.ec2.NatGateway(
        "way-out",
        subnet_id=subnet.id,
        allocation_id=address.id,
        tags=scope.tags("way-out"),
        opts=scope.options([gateway]),
    )
    return nat, subnet


def _make_routes(scope: Scope, vpc: Any, name: str, way_out: dict[str, Any]) -> Any:
    """Create and return a route table that sends all outside traffic to the gateway `way_out`."""
    routes = aws.ec2.RouteTable(name, vpc_id=vpc.id, tags=scope.tags(name), opts=scope.options())
    aws.ec2.Route(
        "out" if name == "routes" else name,
        route_table_id=routes.id,
        destination_cidr_block=ANYWHERE,
        **way_out,
        opts=scope.options(),
    )
    return routes


def _make_s3_endpoint(scope: Scope, vpc: Any, routes: Any) -> None:
    """Create a gateway endpoint of S3 in the route table."""
    # Traffic of checkpoints through this endpoint is free.
    aws.ec2.VpcEndpoint(
        "s3",
        vpc_id=vpc.id,
        vpc_endpoint_type="Gateway",
        service_name=f"com.amazonaws.{scope.settings.region}.s3",
        route_table_ids=[routes.id],
        tags=scope.tags("s3"),
        opts=scope.options(),
    )


def _make_endpoint(scope: Scope, vpc: Any, service: str, subnets: list[Any], group: Any) -> None:
    """Create an interface endpoint of an AWS service in the subnets.

    The service's usual host name resolves to the endpoint. `service` is like `ecr.api`, and
    `group` is the instances' security group.
    """
    aws.ec2.VpcEndpoint(
        service,
        vpc_id=vpc.id,
        vpc_endpoint_type="Interface",
        service_name=f"com.amazonaws.{scope.settings.region}.{service}",
        subnet_ids=subnets,
        # The instances are members of this group, which allows all connections among members.
        security_group_ids=[group.id],
        private_dns_enabled=True,
        tags=scope.tags(service.replace(".", "-")),
        opts=scope.options(),
    )


def _make_security_group(scope: Scope, vpc: Any) -> Any:
    """Create and return the group of instances.

    Members may connect to each other and to any address; nobody else may connect to a member.
    """
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
    # Elastic Fabric Adapters require rules that refer to the same security group.
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
