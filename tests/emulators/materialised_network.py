"""The parts of a network on AWS's emulator, made when a program registers them."""

from collections.abc import Callable
from typing import Any

from tests.emulators.requests import Inputs, Made, capitalize_names, rename_keys, tag_list


def _request(kind: str, inputs: Inputs) -> Inputs:
    """Return the inputs in EC2's format, with tags for resources of `kind`."""
    tags = {"ResourceType": kind, "Tags": tag_list(inputs.pop("tags"))}
    return {**capitalize_names(inputs), "TagSpecifications": [tags]}


def _vpc(ec2: Any, inputs: Inputs) -> Made:
    named = {key: inputs.pop(key) for key in ("enableDnsSupport", "enableDnsHostnames")}
    made: str = ec2.create_vpc(**_request("vpc", inputs))["Vpc"]["VpcId"]
    for key, value in named.items():
        ec2.modify_vpc_attribute(VpcId=made, **capitalize_names({key: {"value": value}}))
    return made, {}


def _subnet(ec2: Any, inputs: Inputs) -> Made:
    public = {"Value": inputs.pop("mapPublicIpOnLaunch")}
    made: str = ec2.create_subnet(**_request("subnet", inputs))["Subnet"]["SubnetId"]
    ec2.modify_subnet_attribute(SubnetId=made, MapPublicIpOnLaunch=public)
    return made, {}


def _gateway(ec2: Any, inputs: Inputs) -> Made:
    vpc = inputs.pop("vpcId")
    answer = ec2.create_internet_gateway(**_request("internet-gateway", inputs))
    made: str = answer["InternetGateway"]["InternetGatewayId"]
    ec2.attach_internet_gateway(InternetGatewayId=made, VpcId=vpc)
    return made, {}


def _routes(ec2: Any, inputs: Inputs) -> Made:
    answer = ec2.create_route_table(**_request("route-table", inputs))
    return answer["RouteTable"]["RouteTableId"], {}


def _route(ec2: Any, inputs: Inputs) -> Made:
    ec2.create_route(**capitalize_names(inputs))
    return f"{inputs['routeTableId']}-{inputs['destinationCidrBlock']}", {}


def _association(ec2: Any, inputs: Inputs) -> Made:
    return ec2.associate_route_table(**capitalize_names(inputs))["AssociationId"], {}


def _endpoint(ec2: Any, inputs: Inputs) -> Made:
    answer = ec2.create_vpc_endpoint(**_request("vpc-endpoint", inputs))
    return answer["VpcEndpoint"]["VpcEndpointId"], {}


def _address(ec2: Any, inputs: Inputs) -> Made:
    return ec2.allocate_address(**_request("elastic-ip", inputs))["AllocationId"], {}


def _nat_gateway(ec2: Any, inputs: Inputs) -> Made:
    answer = ec2.create_nat_gateway(**_request("natgateway", inputs))
    return answer["NatGateway"]["NatGatewayId"], {}


def _security_group(ec2: Any, inputs: Inputs) -> Made:
    given = rename_keys(inputs, name="groupName")
    return ec2.create_security_group(**_request("security-group", given))["GroupId"], {}


def _placement_group(ec2: Any, inputs: Inputs) -> Made:
    """Return the group's name only, because simulated instances need no group."""
    assert inputs["strategy"] == "cluster"
    return inputs["name"], {}


def _rule(direction: str) -> Callable[[Any, Inputs], Made]:
    def make(ec2: Any, inputs: Inputs) -> Made:
        group, who = inputs.pop("securityGroupId"), {}
        if "cidrIpv4" in inputs:
            who["IpRanges"] = [{"CidrIp": inputs.pop("cidrIpv4")}]
        if "referencedSecurityGroupId" in inputs:
            who["UserIdGroupPairs"] = [{"GroupId": inputs.pop("referencedSecurityGroupId")}]
        allowed = {"IpProtocol": inputs.pop("ipProtocol"), **who}
        request = {**_request("security-group-rule", inputs), "IpPermissions": [allowed]}
        getattr(ec2, f"authorize_security_group_{direction}")(GroupId=group, **request)
        return f"{group}-{direction}", {}

    return make


NETWORK: dict[str, Callable[[Any, Inputs], Made]] = {
    "aws:ec2/eip:Eip": _address,
    "aws:ec2/internetGateway:InternetGateway": _gateway,
    "aws:ec2/natGateway:NatGateway": _nat_gateway,
    "aws:ec2/placementGroup:PlacementGroup": _placement_group,
    "aws:ec2/route:Route": _route,
    "aws:ec2/routeTable:RouteTable": _routes,
    "aws:ec2/routeTableAssociation:RouteTableAssociation": _association,
    "aws:ec2/securityGroup:SecurityGroup": _security_group,
    "aws:ec2/subnet:Subnet": _subnet,
    "aws:ec2/vpc:Vpc": _vpc,
    "aws:ec2/vpcEndpoint:VpcEndpoint": _endpoint,
    "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule": _rule("egress"),
    "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule": _rule("ingress"),
}
