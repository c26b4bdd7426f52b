"""The check of the pools' file systems against the network of the instances."""

from dataclasses import replace
from typing import Any

import pytest

from control_plane.config.pools import ClusterConfig, check_cluster
from infra.aws.account_facts import FileSystemFacts, Interface, NetworkFacts, Rule
from infra.aws.account_reader import read_account
from infra.aws.file_system_checks import find_file_system_problems
from infra.aws.settings import Network
from infra.findings import Finding, Level, Unknown
from tests.unit.infra.test_infra_account_checks import GOOD, SETTINGS
from tests.unit.infra.test_infra_account_reader import SETTINGS as READ
from tests.unit.infra.test_infra_account_reader import Aws, answer_everything

EFS, LUSTRE = "fs-0123456789abcdef0", "fs-0fedcba9876543210"
A, B = SETTINGS.zones
OURS, THEIRS = "sg-instances", "sg-files"
NFS = Rule("tcp", 2049, 2049, groups=frozenset({OURS}))
GIVEN = replace(SETTINGS, network=Network({A: "subnet-a", B: "subnet-b"}, OURS))


def cluster(
    *file_systems: str, zone: str = "", markets: tuple[str, ...] = ("spot",)
) -> ClusterConfig:
    sold = [f"{{instance_type: g5.xlarge, zone: '{zone}', market: {market}}}" for market in markets]
    return check_cluster(
        "resource_pools: [{pool_name: default, provider: {type: aws, image_id: ami-7, "
        f"offerings: [{', '.join(sold)}], file_systems: [{', '.join(file_systems)}]}}}}]\n"
    )


EFS_POOL = cluster(f"{{id: {EFS}, folder: /mnt/data}}")
LUSTRE_POOL = cluster(
    f"{{id: {LUSTRE}, folder: /mnt/fast, type: fsx_lustre, mount_name: abcdefgh}}"
)


def targets(*zones: str, vpc: str = "vpc-1") -> tuple[Interface, ...]:
    return tuple(Interface(vpc, zone, frozenset({THEIRS})) for zone in zones)


def network(*rules: Rule, vpc: str = "vpc-1") -> NetworkFacts:
    return NetworkFacts(vpc, OURS if vpc else "", ("10.0.0.0/20", "10.0.16.0/20"), {THEIRS: rules})


def finding(
    facts: Any, where: Any = None, pool: ClusterConfig = EFS_POOL, settings: Any = SETTINGS
) -> Finding:
    name = LUSTRE if pool is LUSTRE_POOL else EFS
    given = replace(GOOD, file_systems={name: facts}, network=where or network(NFS))
    [problem] = find_file_system_problems(settings, pool, given)
    assert problem.subject == f"pool default, {name}"
    return problem


def test_file_system_with_a_target_and_a_rule_per_zone_is_fine() -> None:
    problem = finding(FileSystemFacts(targets(A, B)))
    assert (problem.level, problem.text) == (Level.FINE, f"reached from {A}, {B}")


@pytest.mark.parametrize(
    ("facts", "where", "level", "expected"),
    [
        (None, network(), Level.ERROR, "us-east-1 has no file system of this account"),
        (
            Unknown("elasticfilesystem:DescribeMountTargets", "AWS answered AccessDenied"),
            network(),
            Level.WARNING,
            "could not be checked: AWS answered AccessDenied",
        ),
        (
            FileSystemFacts(targets(A, B)),
            Unknown("ec2:DescribeSecurityGroups", "AWS answered UnauthorizedOperation"),
            Level.WARNING,
            "could not be checked",
        ),
        (
            FileSystemFacts(targets(A, B, vpc="vpc-2")),
            network(NFS),
            Level.ERROR,
            "it is in vpc-2, and instances are in vpc-1",
        ),
        # The stack's network does not exist yet.
        (
            FileSystemFacts(targets(A, B)),
            network(vpc=""),
            Level.ERROR,
            "it is in vpc-1, and instances are in a VPC of their own that the stack will make",
        ),
        (FileSystemFacts(()), network(vpc=""), Level.WARNING, "it has no mount target"),
        (FileSystemFacts(()), network(), Level.ERROR, "it has no mount target"),
        (
            FileSystemFacts(targets(A)),
            network(NFS),
            Level.ERROR,
            f"it has no mount target in {B}, where instances may be",
        ),
        (
            FileSystemFacts(targets(A, B)),
            network(replace(NFS, first_port=22, last_port=22)),
            Level.ERROR,
            f"in {A} its security group, {THEIRS}, does not allow instances in at TCP 2049",
        ),
    ],
)
def test_unmountable_file_system_has_a_finding(
    facts: Any, where: Any, level: Level, expected: str
) -> None:
    problem = finding(facts, where)
    assert problem.level is level
    assert problem.text.startswith(expected)
    assert problem.remedy


@pytest.mark.parametrize(
    ("rule", "is_open"),
    [
        (Rule("-1", 0, 65_535, groups=frozenset({OURS})), True),
        (Rule("tcp", 2049, 2049, blocks=("10.0.0.0/16",)), True),
        # The block covers only the first subnet.
        (Rule("tcp", 2049, 2049, blocks=("10.0.0.0/20",)), False),
        (Rule("tcp", 2049, 2049, groups=frozenset({"sg-others"})), False),
        (Rule("udp", 2049, 2049, groups=frozenset({OURS})), False),
    ],
)
def test_rule_admits_instances_by_port_and_source(rule: Rule, is_open: bool) -> None:
    problem = finding(FileSystemFacts(targets(A, B)), network(rule))
    assert problem.level is (Level.FINE if is_open else Level.ERROR)


def test_prefix_lists_cannot_be_checked() -> None:
    lists = Rule("tcp", 2000, 2100, has_lists=True)
    problem = finding(FileSystemFacts(targets(A, B)), network(lists))
    assert problem.level is Level.WARNING
    assert "prefix lists, whose content is not read" in problem.text
    # A further rule for the group decides.
    assert finding(FileSystemFacts(targets(A, B)), network(lists, NFS)).level is Level.FINE


def test_mount_targets_are_needed_only_in_the_pools_zones() -> None:
    pool = cluster(f"{{id: {EFS}, folder: /mnt/data}}", zone=B)
    assert finding(FileSystemFacts(targets(B)), pool=pool).level is Level.FINE
    assert f"no mount target in {B}" in finding(FileSystemFacts(targets(A)), pool=pool).text


def test_lustre_needs_lustre_ports_and_the_mount_name() -> None:
    facts = FileSystemFacts(targets(A), "abcdefgh")
    ports = [
        Rule("tcp", first, last, frozenset({OURS})) for first, last in ((988, 988), (1018, 1023))
    ]
    assert finding(facts, network(*ports), LUSTRE_POOL).level is Level.FINE
    closed = finding(facts, network(ports[0]), LUSTRE_POOL)
    assert (closed.level, closed.text[-16:]) == (Level.ERROR, "TCP 1018 to 1023")
    named = finding(replace(facts, mount_name="zyxwvuts"), network(*ports), LUSTRE_POOL)
    assert (named.level, named.remedy) == (Level.ERROR, "set mount_name: zyxwvuts")


def test_lustre_in_a_different_vpc_may_use_a_custom_peering() -> None:
    facts = FileSystemFacts(targets(A, vpc="vpc-2"), "abcdefgh")
    assert finding(facts, network(), LUSTRE_POOL, GIVEN).level is Level.WARNING
    assert finding(facts, network(), LUSTRE_POOL).level is Level.ERROR


def test_reads_file_systems_and_network_rules() -> None:
    aws = Aws()
    answer_everything(aws)
    target: dict[str, Any] = {"MountTargetId": "fsmt-00000001", "FileSystemId": EFS}
    target |= {"SubnetId": "subnet-00000001", "NetworkInterfaceId": "eni-00000001"}
    target |= {"LifeCycleState": "available"}
    aws.answer("efs", "describe_mount_targets", {"MountTargets": [target]}, {"FileSystemId": EFS})
    lustre: dict[str, Any] = {"FileSystemId": LUSTRE, "NetworkInterfaceIds": ["eni-00000002"]}
    lustre["LustreConfiguration"] = {"MountName": "abcdefgh"}
    described: Any = {"FileSystems": [lustre]}
    aws.answer("fsx", "describe_file_systems", described, {"FileSystemIds": [LUSTRE]})
    aws.refuse("fsx", "describe_file_systems", "FileSystemNotFound")
    interface: Any = {"VpcId": "vpc-1", "AvailabilityZone": A, "Groups": [{"GroupId": THEIRS}]}
    for number in (1, 2):
        request: Any = {"NetworkInterfaceIds": [f"eni-0000000{number}"]}
        aws.answer(
            "ec2", "describe_network_interfaces", {"NetworkInterfaces": [interface]}, request
        )
    own = {"Name": "tag:detcloud-cluster", "Values": ["detcloud-vision"]}
    named = {"Name": "group-name", "Values": ["detcloud-vision-instances"]}
    groups: Any = {"SecurityGroups": [{"GroupId": OURS}]}
    aws.answer("ec2", "describe_security_groups", groups, {"Filters": [named, own]})
    subnets: Any = {"Subnets": [{"VpcId": "vpc-1", "CidrBlock": "10.0.0.0/20"}]}
    aws.answer("ec2", "describe_subnets", subnets, {"Filters": [own]})
    nfs: dict[str, Any] = {"IpProtocol": "tcp", "FromPort": 2049, "ToPort": 2049}
    nfs |= {"UserIdGroupPairs": [{"GroupId": OURS}], "IpRanges": [{"CidrIp": "10.0.0.0/8"}]}
    everything = {"IpProtocol": "-1", "PrefixListIds": [{"PrefixListId": "pl-1"}]}
    groups = {"SecurityGroups": [{"GroupId": THEIRS, "IpPermissions": [nfs, everything]}]}
    aws.answer("ec2", "describe_security_groups", groups, {"GroupIds": [THEIRS]})
    facts = read_account(
        READ,
        cluster(
            f"{{id: {EFS}, folder: /a}}",
            f"{{id: {LUSTRE}, folder: /b, type: fsx_lustre, mount_name: abcdefgh}}",
            "{id: fs-99999999, folder: /c, type: fsx_lustre, mount_name: abcdefgh}",
            markets=("spot", "on_demand"),
        ),
        aws,
    )
    reached = (Interface("vpc-1", A, frozenset({THEIRS})),)
    assert facts.file_systems == {
        EFS: FileSystemFacts(reached),
        LUSTRE: FileSystemFacts(reached, "abcdefgh"),
        "fs-99999999": None,
    }
    rules = (replace(NFS, blocks=("10.0.0.0/8",)), Rule("-1", 0, 65_535, has_lists=True))
    assert facts.network == NetworkFacts("vpc-1", OURS, ("10.0.0.0/20",), {THEIRS: rules})
