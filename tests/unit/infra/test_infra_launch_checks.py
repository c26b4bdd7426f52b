"""Findings about launches with DryRun and about a company's rules."""

from dataclasses import replace
from typing import Any

import pytest

from control_plane.config.pools import ClusterConfig, check_cluster
from infra.aws.account_facts import DryLaunch, DryRun, ImageRules, PoolFacts, PublicAccess
from infra.aws.launch_checks import check_launches
from infra.aws.settings import Network, Settings
from infra.findings import Finding, Level, Unknown

SETTINGS = Settings("vision", "111111111111", "us-east-1", "pools.yaml", "a" * 64)
NETWORK = Network({"us-east-1a": "subnet-a", "us-east-1b": "subnet-b"}, "sg-1")
WORKS = DryRun("DryRunOperation")
SUBJECT = "launch in pool default, g5.xlarge spot"
LAUNCH = DryLaunch("default", "g5.xlarge spot", {"CreateFleet": WORKS, "RunInstances": WORKS})
FACTS = PoolFacts(
    quotas={},
    types={},
    zones={},
    disk_key=Unknown("", ""),
    image="ami-1",
    image_architectures={},
    launches=(LAUNCH,),
)
IDENTITY = "User: x is not authorized to perform: ec2:RunInstances because no identity-based policy"
SCP = "with an explicit deny in a service control policy"


def pools(more: str = "") -> ClusterConfig:
    return check_cluster(
        "resource_pools: [{pool_name: default, provider: {type: aws, offerings: [{instance_type: "
        f"g5.xlarge, market: spot}}]{more}}}}}]\n"
    )


def findings(settings: Settings = SETTINGS, more: str = "", **facts: Any) -> list[Finding]:
    return list(check_launches(settings, pools(more), replace(FACTS, **facts)))


def finding_about(answer: DryRun | Unknown, *left_out: str) -> Finding:
    launch = replace(LAUNCH, answers={"RunInstances": answer}, left_out=left_out)
    [found] = [one for one in findings(launches=(launch,)) if one.subject == SUBJECT]
    return found


def test_allowed_launch_is_fine() -> None:
    assert {finding.level for finding in findings()} == {Level.FINE}
    assert [finding.subject for finding in findings()] == [
        "allowed images",
        "public access",
        SUBJECT,
    ]


def test_launch_without_the_stacks_network_is_a_warning() -> None:
    found = finding_about(WORKS, "the subnet", "the security group")
    assert found.level is Level.WARNING
    assert "but without the subnet and the security group: not created yet" in found.text
    assert "after the first deployment" in found.remedy


@pytest.mark.parametrize(
    ("answer", "level", "expected", "remedy"),
    [
        (
            DryRun("UnauthorizedOperation", SCP, "ec2:RunInstances on x, by the statement NoIps"),
            Level.ERROR,
            "organization denies launches in this account and region (ec2:RunInstances on x, by "
            "the statement NoIps)",
            "public_ip",
        ),
        (
            DryRun("UnauthorizedOperation", SCP, decoding_refused=True),
            Level.ERROR,
            "organization denies",
            "sts:DecodeAuthorizationMessage would show the statement",
        ),
        (
            DryRun("UnauthorizedOperation", "because no service control policy allows the action"),
            Level.ERROR,
            "organization denies",
            "administrator",
        ),
        (
            DryRun("UnauthorizedOperation", IDENTITY),
            Level.WARNING,
            "could not be checked: the caller may not launch instances; this is not required",
            "policy aws --launches` prints",
        ),
        (
            DryRun("UnauthorizedOperation", "no permissions boundary allows the action"),
            Level.WARNING,
            "could not be checked: the permissions boundary",
            "ec2:RunInstances",
        ),
        (
            DryRun("InvalidAMIID.NotFound", "The image id '[ami-1]' does not exist"),
            Level.ERROR,
            "is hidden by the account's Allowed AMIs",
            "add the image's owner",
        ),
        (
            DryRun("TagPolicyViolation", "The tag policy does not allow the value of 'stage'"),
            Level.ERROR,
            "a tag policy of the organization refuses the tags",
            "detcloud:tags",
        ),
        (
            DryRun("AuthFailure.ServiceLinkedRoleCreationNotPermitted", ""),
            Level.ERROR,
            "AWSServiceRoleForEC2Spot is missing",
            "create-service-linked-role",
        ),
        (
            DryRun("Unsupported", "not supported in your requested Availability Zone"),
            Level.ERROR,
            "the zone does not offer the type",
            "another zone or type",
        ),
        (DryRun("VcpuLimitExceeded", "limit of 0"), Level.ERROR, "limit of 0", "increase"),
        (
            DryRun("InsufficientInstanceCapacity", "none"),
            Level.WARNING,
            "InsufficientInstanceCapacity",
            "add types",
        ),
        (
            DryRun("InvalidParameterValue", "Invalid IAM Instance Profile"),
            Level.ERROR,
            "Invalid IAM Instance Profile",
            "correct the field",
        ),
        (
            DryRun("RequestLimitExceeded", "slow down"),
            Level.WARNING,
            "could not be checked",
            "later",
        ),
        (DryRun("Surprise", ""), Level.WARNING, "could not be checked", "look up the code"),
        (
            Unknown("ec2:RunInstances", "AWS could not be queried: EndpointConnectionError"),
            Level.WARNING,
            "could not be checked: AWS could not be queried",
            "the check needs ec2:RunInstances",
        ),
        (
            DryRun("ConfigurationError", "the boot script has 17000 bytes"),
            Level.ERROR,
            "17000 bytes",
            "correct the settings of the pool",
        ),
    ],
)
def test_each_refusal_has_a_cause_and_a_remedy(
    answer: DryRun | Unknown, level: Level, expected: str, remedy: str
) -> None:
    found = finding_about(answer)
    assert found.level is level, found
    assert expected in found.text
    assert remedy in found.remedy


def test_account_without_networks_cannot_be_checked_before_the_deployment() -> None:
    found = finding_about(DryRun("VPCIdNotSpecified", "No default VPC"), "the subnet")
    assert (found.level, found.text.partition(":")[0]) == (Level.WARNING, "could not be checked")
    assert finding_about(DryRun("VPCIdNotSpecified", "No default VPC")).level is Level.ERROR


def test_equal_refusals_of_two_operations_are_one_finding() -> None:
    denied = DryRun("UnauthorizedOperation", IDENTITY)
    launch = replace(LAUNCH, answers={"CreateFleet": denied, "RunInstances": denied})
    assert len([one for one in findings(launches=(launch,)) if one.subject == SUBJECT]) == 1


def test_refused_operation_is_found_beside_an_allowed_one() -> None:
    refused = DryRun("UnauthorizedOperation", SCP)
    launch = replace(LAUNCH, answers={"CreateFleet": refused, "RunInstances": WORKS})
    [found] = [one for one in findings(launches=(launch,)) if one.subject == SUBJECT]
    assert found.level is Level.ERROR


@pytest.mark.parametrize(
    ("rules", "level"),
    [
        (ImageRules("disabled"), Level.FINE),
        (ImageRules("enabled"), Level.FINE),
        (ImageRules("enabled", frozenset({"ami-1"})), Level.ERROR),
        (ImageRules("audit-mode", frozenset({"ami-1"})), Level.WARNING),
    ],
)
def test_hidden_images_are_an_error(rules: ImageRules, level: Level) -> None:
    found = findings(image_rules=rules)[0]
    assert (found.subject, found.level) == ("allowed images", level)
    assert ("ami-1" in found.text) == (level is not Level.FINE)


PRIVATE = ", network_interface: {public_ip: false}"
OWN_PRIVATE = replace(SETTINGS, private_subnets=True)
GIVEN = replace(SETTINGS, network=NETWORK)
BOTH_SUBNETS = frozenset({"subnet-a", "subnet-b"})


@pytest.mark.parametrize(
    ("settings", "more", "access", "level"),
    [
        (SETTINGS, "", PublicAccess("off"), Level.FINE),
        # Ingress blocking keeps public addresses from any traffic, and allows NAT gateways.
        (SETTINGS, "", PublicAccess("block-ingress"), Level.ERROR),
        (OWN_PRIVATE, "", PublicAccess("block-ingress"), Level.FINE),
        (GIVEN, PRIVATE, PublicAccess("block-ingress"), Level.FINE),
        (GIVEN, "", PublicAccess("block-ingress"), Level.ERROR),
        (OWN_PRIVATE, "", PublicAccess("block-bidirectional"), Level.ERROR),
        # A given network may reach the internet through another account's network.
        (GIVEN, PRIVATE, PublicAccess("block-bidirectional"), Level.WARNING),
        (
            SETTINGS,
            "",
            PublicAccess("block-bidirectional", frozenset({"vpc-1"}), vpc="vpc-1"),
            Level.FINE,
        ),
        (
            SETTINGS,
            "",
            PublicAccess("block-ingress", frozenset({"vpc-2"}), vpc="vpc-1"),
            Level.ERROR,
        ),
        (GIVEN, "", PublicAccess("block-ingress", BOTH_SUBNETS), Level.FINE),
        (GIVEN, "", PublicAccess("block-ingress", frozenset({"subnet-a"})), Level.ERROR),
    ],
)
def test_blocked_public_access_is_found(
    settings: Settings, more: str, access: PublicAccess, level: Level
) -> None:
    found = findings(settings, more, public_access=access)[1]
    assert (found.subject, found.level) == ("public access", level), found
    if level is not Level.FINE:
        assert "exclude the network" in found.remedy


def test_forbidden_exclusions_are_not_advised() -> None:
    access = PublicAccess("block-bidirectional", exclusions_allowed=False)
    found = findings(public_access=access)[1]
    assert "allows no exclusions" in found.remedy


@pytest.mark.parametrize("name", ["launches", "image_rules", "public_access"])
def test_unreadable_rule_is_a_warning(name: str) -> None:
    unknown = Unknown("some:Permission", "AWS answered AccessDenied")
    facts: dict[str, Any] = {name: unknown}
    [found] = [one for one in findings(**facts) if one.level is not Level.FINE]
    assert found.level is Level.WARNING
    assert found.text == "could not be checked: AWS answered AccessDenied"
    assert found.remedy == "the check needs some:Permission"


def test_nothing_is_found_without_pools_on_aws() -> None:
    cluster = check_cluster("resource_pools: [{pool_name: default}]\n")
    assert list(check_launches(SETTINGS, cluster, FACTS)) == []
