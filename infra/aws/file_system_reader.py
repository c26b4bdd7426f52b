"""Reads the file systems that pools mount, and the network of the pools' instances, from AWS."""

from collections.abc import Iterable, Mapping
from typing import Any

import botocore.exceptions as sdk

from control_plane.aws.pool_provider import FileSystem
from infra.aws.account_facts import Clients, FileSystemFacts, Interface, NetworkFacts, Rule
from infra.aws.settings import Settings
from provisioner.clouds.provider import CLUSTER_TAG

_MISSING = frozenset({"FileSystemNotFound"})
_ALL_PORTS = (0, 65_535)


def read_file_system(clients: Clients, wanted: FileSystem) -> FileSystemFacts | None:
    """Return the mount name and network interfaces of a file system.

    Return None if the region has no file system with this id. Raise the SDK's other errors.
    """
    try:
        if wanted.type == "efs":
            pages = clients("efs").get_paginator("describe_mount_targets")
            targets = [
                mount_target
                for page in pages.paginate(FileSystemId=wanted.id)
                for mount_target in page["MountTargets"]
            ]
            ids = [
                target["NetworkInterfaceId"] for target in targets if "NetworkInterfaceId" in target
            ]
            return FileSystemFacts(_interfaces(clients, ids))
        answer = clients("fsx").describe_file_systems(FileSystemIds=[wanted.id])
        [found] = answer["FileSystems"]
    except sdk.ClientError as error:
        if error.response.get("Error", {}).get("Code") in _MISSING:
            return None
        raise
    mount_name = found.get("LustreConfiguration", {}).get("MountName", "")
    return FileSystemFacts(_interfaces(clients, found.get("NetworkInterfaceIds", ())), mount_name)


def read_network(
    settings: Settings, clients: Clients, file_systems: Iterable[object]
) -> NetworkFacts:
    """Return the network of instances, and the rules of the file systems' security groups.

    Without the setting `network`, look for the stack's own group and subnets. VPC and group are
    empty and blocks () if the stack has not created them yet. Ignore `file_systems` that are not
    FileSystemFacts. Raise the SDK's errors.
    """
    ec2, names = clients("ec2"), settings.names
    if settings.network is not None:
        group = settings.network.security_group
        asked: dict[str, Any] = {"SubnetIds": sorted(settings.network.subnets.values())}
    else:
        filters = [
            {"Name": "group-name", "Values": [names.part("instances")]},
            _cluster_filter(names.cluster),
        ]
        groups = ec2.describe_security_groups(Filters=filters)["SecurityGroups"]
        group = groups[0]["GroupId"] if groups else ""
        asked = {"Filters": [_cluster_filter(names.cluster)]}
    subnets = ec2.describe_subnets(**asked)["Subnets"]
    facts = [
        file_system for file_system in file_systems if isinstance(file_system, FileSystemFacts)
    ]
    interfaces = [interface for fact in facts for interface in fact.interfaces]
    ids = sorted({group for interface in interfaces for group in interface.groups})
    described = ec2.describe_security_groups(GroupIds=ids)["SecurityGroups"] if ids else []
    return NetworkFacts(
        vpc=subnets[0]["VpcId"] if subnets else "",
        group=group,
        blocks=tuple(sorted(subnet["CidrBlock"] for subnet in subnets)),
        rules={item["GroupId"]: tuple(map(_rule, item["IpPermissions"])) for item in described},
    )


def _cluster_filter(cluster: str) -> dict[str, Any]:
    """Return EC2's filter for resources with the tag of the cluster."""
    return {"Name": f"tag:{CLUSTER_TAG}", "Values": [cluster]}


def _interfaces(clients: Clients, ids: Iterable[str]) -> tuple[Interface, ...]:
    """Read network interfaces by id. Return () without a call for no ids.

    Raise the SDK's errors.
    """
    names = sorted(ids)
    if not names:
        return ()
    answer = clients("ec2").describe_network_interfaces(NetworkInterfaceIds=names)
    return tuple(
        Interface(
            vpc=network_interface["VpcId"],
            zone=network_interface["AvailabilityZone"],
            groups=frozenset(group["GroupId"] for group in network_interface["Groups"]),
        )
        for network_interface in answer["NetworkInterfaces"]
    )


def _rule(permission: Mapping[str, Any]) -> Rule:
    """Convert EC2's description of an incoming rule. A rule for all protocols has all ports."""
    is_all = permission["IpProtocol"] == "-1"
    first, last = (
        _ALL_PORTS if is_all else (permission.get("FromPort", 0), permission.get("ToPort", 0))
    )
    return Rule(
        protocol=permission["IpProtocol"],
        first_port=first,
        last_port=last,
        groups=frozenset(
            user_id_group_pair["GroupId"]
            for user_id_group_pair in permission.get("UserIdGroupPairs", ())
        ),
        blocks=tuple(ip_range["CidrIp"] for ip_range in permission.get("IpRanges", ())),
        has_lists=bool(permission.get("PrefixListIds")),
    )
