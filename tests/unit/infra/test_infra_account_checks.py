"""The check of an AWS account: a finding for each fact."""

from dataclasses import replace
from typing import Any

import pytest

from control_plane.config.pools import ClusterConfig, check_cluster
from infra.aws import policies
from infra.aws.account_checks import check_disks, check_facts, default_api_concurrency
from infra.aws.account_facts import (
    AccountFacts,
    Caller,
    Concurrency,
    DiskKey,
    KeyFacts,
    NetworkCount,
    OwnBucket,
    TypeFacts,
)
from infra.aws.pool_checks import find_pool_problems
from infra.aws.settings import Network, Settings
from infra.findings import Finding, Level, Unknown
from tests.emulators.policy_reader import allows

SETTINGS = Settings(
    "vision",
    "111111111111",
    "us-east-1",
    "pools.yaml",
    "a" * 64,
    zones=("us-east-1a", "us-east-1b"),
)
BOTH = frozenset(SETTINGS.zones)
GOOD = AccountFacts(
    caller=Caller("111111111111", "arn:aws:iam::111111111111:user/ann"),
    denied=(),
    quotas={"L-3819A6DF": 64.0, "L-DB2E81BA": 64.0},
    types={"g5.xlarge": TypeFacts(4, frozenset({"x86_64"}), (("NVIDIA", "A10G"),))},
    zones={"g5.xlarge": BOTH},
    disk_key=DiskKey("alias/aws/ebs", is_own=False),
    concurrency=Concurrency(1000, 1000),
    image="ami-1",
    image_architectures={},
    launches=(),
)


def pools(
    kind: str = "g5.xlarge", market: str = "spot", more: str = "", slots: int = 1
) -> ClusterConfig:
    offering = f"{{instance_type: {kind}, market: {market}, slots: {slots}}}"
    return check_cluster(
        "resource_pools: [{pool_name: default, provider: {type: aws, cpu_slots_allowed: true, "
        f"max_instances: 4, offerings: [{offering}]{more}}}}}]\n"
    )


def findings(
    cluster: ClusterConfig | None = None, settings: Settings = SETTINGS, **facts: Any
) -> list[Finding]:
    return check_facts(settings, cluster or pools(), replace(GOOD, **facts))


def worst(results: list[Finding]) -> Finding:
    [only] = [finding for finding in results if finding.level is not Level.FINE]
    return only


@pytest.mark.parametrize(
    "networks", [None, NetworkCount(4, 5.0), NetworkCount(5, 5.0, has_own=True)]
)
def test_stack_without_a_network_needs_room_in_the_vpc_quota(networks: NetworkCount | None) -> None:
    results = findings(networks=networks)
    assert {finding.level for finding in results} == {Level.FINE}
    assert ("network" in [finding.subject for finding in results]) == (networks is not None)


@pytest.mark.parametrize(
    ("image", "is_refused"),
    [
        ("ami-0123456789abcdef0", False),
        ("resolve:ssm:/aws/service/canonical/ubuntu/server/24.04/stable", False),
        ("resolve:ssm:/vision/image", True),
        ("detcloud-image", True),
    ],
)
def test_refuses_images_that_the_tick_cannot_find(image: str, is_refused: bool) -> None:
    problems = find_pool_problems(SETTINGS, pools(more=f", image_id: '{image}'"))
    assert [
        text for text in problems if f"provider.image_id is {image}: expected" in text
    ] == problems
    assert bool(problems) == is_refused
    # The tick's policy allows the accepted images.
    name = image.removeprefix("resolve:ssm:")
    arn = f"arn:aws:ssm:us-east-1::parameter{name}"
    if image.startswith("resolve:"):
        assert allows(policies.tick(SETTINGS.names, None), "ssm:GetParameters", arn) != is_refused


@pytest.mark.parametrize(("of_stack", "is_refused"), [(14, False), (15, False), (16, True)])
def test_refuses_more_tags_than_ec2_allows(of_stack: int, is_refused: bool) -> None:
    # Of EC2's 50 tags five are the cluster's and 30 the pool's. A key that pool and stack share
    # counts once.
    own = ", ".join(f"{{key: pool-{number}}}" for number in range(30))
    stack = {f"stack-{number}": "x" for number in range(of_stack)} | {"pool-1": "x"}
    settings = replace(SETTINGS, tags=stack)
    problems = find_pool_problems(settings, pools(more=f", custom_tags: [{own}]"))
    assert [name for name in problems if "46 tags: expected at most 45" in name] == problems
    assert bool(problems) == is_refused


def test_refuses_a_task_role_for_an_unknown_pool() -> None:
    role = "arn:aws:iam::222222222222:role/readers"
    settings = replace(SETTINGS, task_roles={"default": role, "gpu": role})
    [problem] = find_pool_problems(settings, pools())
    assert problem == (
        "detcloud:taskRoles gives a role to the trials of gpu: expected a pool of pools.yaml, "
        "which has default"
    )


def test_capacity_block_is_a_separate_market_without_quota() -> None:
    # P6 is sold in blocks alone, and a new account's quota of P is 0.
    block = ", capacity_reservation: cr-0123456789abcdef0, capacity_block: true"
    kind = TypeFacts(192, frozenset({"x86_64"}), (("NVIDIA", "B200"),))
    sold = {"p6-b200.48xlarge": replace(kind, markets=frozenset({"capacity-block"}), gpu_count=8)}
    facts: dict[str, Any] = {
        "types": sold,
        "zones": {"p6-b200.48xlarge": BOTH},
        "quotas": {"L-417A185B": 0.0},
    }
    results = findings(pools("p6-b200.48xlarge", "on_demand", block, slots=8), **facts)
    assert {finding.level for finding in results} == {Level.FINE}
    assert "pool default, p6-b200.48xlarge capacity-block" in [
        finding.subject for finding in results
    ]
    # Without a block the type is not sold.
    results = findings(pools("p6-b200.48xlarge", "on_demand", slots=8), **facts)
    errors = {finding.subject: finding.text for finding in results if finding.level is Level.ERROR}
    assert errors["pool default, p6-b200.48xlarge on-demand"] == "it is sold only as capacity-block"
    assert "0 vCPUs" in errors["quota L-417A185B"]


def test_complete_account_has_only_fine_findings() -> None:
    results = findings()
    assert {finding.level for finding in results} == {Level.FINE}
    subjects = [finding.subject for finding in results]
    assert subjects == [
        "credentials",
        "permissions",
        "pool default, g5.xlarge spot",
        "quota L-3819A6DF",
        "image",
        "disks",
        "concurrency",
        "allowed images",
        "public access",
    ]


@pytest.mark.parametrize(
    ("facts", "level", "expected", "remedy"),
    [
        (
            {"caller": Caller("222222222222", "arn:aws:iam::222222222222:user/ann")},
            Level.ERROR,
            "they belong to account 222222222222",
            "the account in the settings",
        ),
        (
            {"denied": ("iam:CreateRole", "s3:CreateBucket")},
            Level.ERROR,
            "may not iam:CreateRole, s3:CreateBucket",
            "deploy policy aws",
        ),
        # A new account has no quota.
        (
            {"quotas": {"L-3819A6DF": 0.0}},
            Level.ERROR,
            "All G and VT Spot Instance Requests: 0 vCPUs, and one g5.xlarge has 4",
            "us-east-1.console.aws.amazon.com/servicequotas/home/services/ec2/quotas/L-3819A6DF",
        ),
        # Four instances of four vCPUs are wanted, and three would fit.
        (
            {"quotas": {"L-3819A6DF": 12.0}},
            Level.WARNING,
            "12 vCPUs, and the pools default may want 16",
            "request an increase",
        ),
        ({"types": {}}, Level.ERROR, "us-east-1 does not offer this type", "another region"),
        # Four other teams, and the default network of the region.
        (
            {"networks": NetworkCount(5, 5.0)},
            Level.ERROR,
            "5 of 5 networks exist, and the stack creates one",
            "services/vpc/quotas, or name a network in detcloud:network",
        ),
        ({"plan": "FREE"}, Level.ERROR, "AWS's free plan", "upgrade-account-plan"),
        (
            {"zones": {"g5.xlarge": frozenset({"us-east-1a", "us-east-1d"})}},
            Level.WARNING,
            "not offered in us-east-1b; it is offered in us-east-1a, us-east-1d",
            "add zones to detcloud:zones",
        ),
        (
            {"zones": {"g5.xlarge": frozenset({"us-east-1d"})}},
            Level.ERROR,
            "not offered in us-east-1a, us-east-1b; it is offered in us-east-1d",
            "detcloud:zones",
        ),
        (
            {"disk_key": DiskKey("arn:aws:kms:us-east-1:111111111111:key/1", is_own=True)},
            Level.ERROR,
            "is its own",
            "detcloud:kmsKey",
        ),
        # Reserving 2 for the tick, 2 for `wake` and 2 for other functions leaves 4 of 10, and
        # Lambda requires 100.
        (
            {"concurrency": Concurrency(10, 10)},
            Level.ERROR,
            "reserving 6 would leave 4 for others, but Lambda requires 100",
            "tickConcurrency: -1",
        ),
        ({"image": ""}, Level.ERROR, "no parameter", "provider.image_id"),
        ({"has_spot_role": Unknown("iam:GetRole", "no")}, Level.WARNING, "no", "iam:GetRole"),
    ],
)
def test_each_account_problem_has_a_finding_with_a_remedy(
    facts: dict[str, Any], level: Level, expected: str, remedy: str
) -> None:
    problem = worst(findings(**facts))
    assert problem.level is level
    assert expected in problem.text
    assert remedy in problem.remedy


@pytest.mark.parametrize(
    "name", ["denied", "zones", "disk_key", "concurrency", "image", "launches"]
)
def test_unreadable_fact_is_a_warning_that_names_the_permission(name: str) -> None:
    facts: dict[str, Any] = {name: Unknown("some:Permission", "AWS answered AccessDenied")}
    problem = worst(findings(**facts))
    assert problem.level is Level.WARNING
    assert problem.text == "could not be checked: AWS answered AccessDenied"
    assert problem.remedy == "the check needs some:Permission"


def test_default_key_is_irrelevant_with_own_key() -> None:
    facts = replace(GOOD, disk_key=Unknown("ec2:GetEbsDefaultKmsKeyId", "AccessDenied"))
    key = "arn:aws:kms:us-east-1:111111111111:key/1"
    [result] = check_disks(facts, key, "set detcloud:kmsKey")
    assert (result.level, result.text) == (Level.FINE, "encrypted with detcloud:kmsKey")


def test_missing_credentials_are_the_only_finding() -> None:
    [problem] = findings(caller=Unknown("sts:GetCallerIdentity", "AWS answered ExpiredToken"))
    assert (problem.level, problem.subject) == (Level.ERROR, "credentials")
    assert problem.text == "AWS accepts no credentials: AWS answered ExpiredToken"


@pytest.mark.parametrize(
    ("bucket", "level", "expected"),
    [
        (OwnBucket("ours", keeps_versions=False), Level.WARNING, "keeps no versions"),
        (OwnBucket("ours", keeps_versions=True), Level.WARNING, "for ever"),
        (OwnBucket("ours", keeps_versions=True, deletes_versions=True), Level.FINE, "some days"),
        (
            Unknown("s3:GetBucketVersioning", "AWS answered AccessDenied"),
            Level.WARNING,
            "could not",
        ),
    ],
)
def test_own_bucket_of_a_team_should_keep_versions(
    bucket: OwnBucket | Unknown, level: Level, expected: str
) -> None:
    [found] = [one for one in findings(own_bucket=bucket) if one.subject.startswith("bucket")]
    assert (found.level, expected in found.text) == (level, True), found


@pytest.mark.parametrize(
    ("settings", "level"),
    [
        ({}, Level.FINE),
        ({"permissions_boundary": "arn:aws:iam::111111111111:policy/b"}, Level.WARNING),
        ({"kms_key": "arn:aws:kms:us-east-1:111111111111:key/1"}, Level.ERROR),
    ],
)
def test_missing_spot_role_matters_to_keys_and_boundaries(
    settings: dict[str, Any], level: Level
) -> None:
    results = findings(settings=replace(SETTINGS, **settings), has_spot_role=False)
    [found] = [finding for finding in results if finding.subject == "spot role"]
    assert (found.level, "AWSServiceRoleForEC2Spot is missing" in found.text) == (level, True)


def test_unreadable_quota_is_a_warning() -> None:
    problem = worst(findings(quotas={"L-3819A6DF": Unknown("servicequotas:GetServiceQuota", "no")}))
    assert (problem.subject, problem.level) == ("quota L-3819A6DF", Level.WARNING)


@pytest.mark.parametrize(
    ("kind", "facts", "expected"),
    [
        ("g5.xlarge", TypeFacts(4, frozenset({"arm64"})), "its processor is arm64"),
        (
            "g5.xlarge",
            TypeFacts(8, frozenset({"x86_64"}), (("NVIDIA", "V100"),)),
            "its GPU, V100 (Volta), is too old",
        ),
        ("g5.xlarge", TypeFacts(8, frozenset({"x86_64"}), (("AMD", "Radeon"),)), "is AMD's"),
        (
            "g5.xlarge",
            TypeFacts(8, frozenset({"x86_64"}), markets=frozenset({"capacity-block"})),
            "sold only as capacity-block",
        ),
    ],
)
def test_instance_type_that_cannot_boot_the_image_is_an_error(
    kind: str, facts: TypeFacts, expected: str
) -> None:
    errors = [finding for finding in findings(types={kind: facts}) if finding.level is Level.ERROR]
    assert expected in errors[0].text


def test_slots_that_differ_from_the_types_gpus_are_an_error() -> None:
    kind = TypeFacts(4, frozenset({"x86_64"}), (("NVIDIA", "A10G"),), gpu_count=2)
    problem = worst(
        [
            finding
            for finding in findings(types={"g5.xlarge": kind})
            if finding.subject[:4] == "pool"
        ]
    )
    assert "it has 2 GPUs, each a slot, and the pool counts 1" in problem.text


def test_slots_of_a_type_without_gpus_are_an_error() -> None:
    kind = TypeFacts(4, frozenset({"x86_64"}))
    cluster = check_cluster(
        "resource_pools: [{pool_name: default, provider: {type: aws, instance_type: n9.large, "
        "instance_slots: 4}}]\n"
    )
    results = findings(cluster, types={"n9.large": kind}, zones={"n9.large": BOTH}, quotas={})
    [error] = [finding for finding in results if finding.level is Level.ERROR]
    assert "it has no GPU and the pool counts 4: its agent offers 0" in error.text
    # AWS's guide names no quota for this family.
    [warning] = [finding for finding in results if finding.level is Level.WARNING]
    assert warning.subject == "quota of n9.large on-demand"
    assert warning.text.startswith("could not be checked")


def test_permission_that_only_the_check_lacks_is_a_warning() -> None:
    problem = worst(findings(denied=("elasticfilesystem:DescribeMountTargets",)))
    assert problem.level is Level.WARNING
    assert "may not elasticfilesystem:DescribeMountTargets" in problem.text


def test_finding_lists_the_hardware_of_an_instance_type() -> None:
    about: Any = {
        "gpu_count": 1,
        "memory_mib": 16_384,
        "store_gb": 250,
        "network": "Up to 10 Gigabit",
    }
    kind = TypeFacts(4, frozenset({"x86_64"}), (("NVIDIA", "A10G"),), **about)
    [result] = [
        finding for finding in findings(types={"g5.xlarge": kind}) if finding.subject[:4] == "pool"
    ]
    assert result.text == (
        "offered in us-east-1a, us-east-1b: 1 GPUs (A10G), 4 vCPUs, 16 GiB of memory, 250 GB of "
        "its own disks, a network of Up to 10 Gigabit"
    )


def test_custom_image_must_exist_and_match_the_architecture() -> None:
    own = pools(more=", image_id: ami-0123456789abcdef0")
    missing = worst(findings(own))
    assert (missing.subject, missing.level) == ("image ami-0123456789abcdef0", Level.ERROR)
    other = worst(findings(own, image_architectures={"ami-0123456789abcdef0": "arm64"}))
    assert "it is for arm64, but not for g5.xlarge" in other.text
    right = findings(own, image_architectures={"ami-0123456789abcdef0": "x86_64"})
    assert {finding.level for finding in right} == {Level.FINE}
    # No pool boots AWS's image.
    assert "image" not in [finding.subject for finding in right]
    # EC2 describes the architecture if the type's name does not.
    kind = TypeFacts(4, frozenset({"arm64"}), (("NVIDIA", "GB9"),))
    given: Any = {"types": {"gb9.large": kind}, "zones": {"gb9.large": BOTH}}
    new = pools("gb9.large", more=", image_id: ami-0123456789abcdef0")
    right = findings(new, image_architectures={"ami-0123456789abcdef0": "arm64"}, **given)
    # No quota is known for the family.
    assert worst(right).subject == "quota of gb9.large spot"


def test_concurrency_that_the_stack_reserved_counts_as_free() -> None:
    # Before and after the deployment 106 - 6 = 100 are left to other functions, which is enough.
    assert {finding.level for finding in findings(concurrency=Concurrency(106, 100, 6))} == {
        Level.FINE
    }


def test_api_reserves_concurrency_if_the_account_has_enough() -> None:
    # 156 - 6 for ticks - 50 for the API = 100, which Lambda leaves to others.
    for unreserved, expected in ((156, 50), (155, -1), (10, -1)):
        assert default_api_concurrency(SETTINGS, Concurrency(1000, unreserved)) == expected
    # Concurrency that the stack already reserved counts as free.
    assert default_api_concurrency(SETTINGS, Concurrency(1000, 100, 56)) == 50
    reserved = replace(SETTINGS, api_concurrency=50)
    problem = worst(findings(settings=reserved, concurrency=Concurrency(10, 10)))
    assert "reserving 56" in problem.text
    assert "set detcloud:tickConcurrency: -1 and detcloud:apiConcurrency: -1" in problem.remedy


def test_tick_concurrency_of_minus_one_reserves_no_concurrency() -> None:
    settings = replace(SETTINGS, tick_concurrency=-1)
    assert {
        finding.level for finding in findings(settings=settings, concurrency=Concurrency(10, 10))
    } == {Level.FINE}


def test_kms_key_needs_a_log_policy_and_the_spot_role() -> None:
    settings = replace(SETTINGS, kms_key="arn:aws:kms:us-east-1:111111111111:key/1")
    key = KeyFacts("Enabled", frozenset({"logs.us-east-1.amazonaws.com"}))
    assert {finding.level for finding in findings(settings=settings, key=key)} == {Level.FINE}
    problem = worst(findings(settings=settings, key=KeyFacts("Enabled", frozenset())))
    assert "does not let logs.us-east-1.amazonaws.com use the key" in problem.text
    problem = worst(findings(settings=settings, key=replace(key, state="Disabled")))
    assert problem.text == "detcloud:kmsKey is Disabled"
    problem = worst(findings(settings=settings, key=key, has_spot_role=False))
    assert "create-service-linked-role" in problem.remedy


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (", region: eu-west-1", "provider.region is eu-west-1: expected us-east-1"),
        (", iam_instance_profile_arn: 'arn:x'", "instances prove who they are by the stack's own"),
        (", network_interface: {subnet_id: subnet-9}", "names the subnet subnet-9: expected none"),
        (
            ", network_interface: {security_group_id: sg-9}",
            "names the security group sg-9: expected none",
        ),
    ],
)
def test_refuses_a_pool_outside_the_stacks_region_and_network(more: str, expected: str) -> None:
    [problem] = find_pool_problems(SETTINGS, pools(more=more))
    assert problem.startswith("pools.yaml: pool default: ")
    assert expected in problem


def test_pool_may_name_the_stacks_own_resources() -> None:
    network = Network({"us-east-1a": "subnet-1"}, "sg-1")
    settings = replace(SETTINGS, network=network)
    named = "network_interface: {subnet_id: subnet-1, security_group_id: sg-1}"
    profile = "arn:aws:iam::111111111111:instance-profile/detcloud-vision-instance"
    more = f", region: us-east-1, iam_instance_profile_arn: '{profile}', {named}"
    assert find_pool_problems(settings, pools(more=more)) == []
    [problem] = find_pool_problems(
        settings, pools(more=", network_interface: {subnet_id: subnet-2}")
    )
    assert "expected one of subnet-1" in problem


def test_refuses_an_offering_in_a_zone_without_a_subnet() -> None:
    cluster = check_cluster(
        "resource_pools: [{pool_name: default, provider: {type: aws, offerings: "
        "[{instance_type: g5.xlarge, zone: us-east-1f}]}}]\n"
    )
    [problem] = find_pool_problems(SETTINGS, cluster)
    assert "zone us-east-1f: expected one of us-east-1a, us-east-1b" in problem
