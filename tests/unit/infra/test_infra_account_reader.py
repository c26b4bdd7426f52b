"""The reader of an AWS account's facts.

Botocore's descriptions of the services refuse prepared answers that AWS would not send.
"""

from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError, UnStubbedResponseError
from botocore.stub import ANY, Stubber

from control_plane.config.pools import check_cluster
from detcloud.shared.aws import new_session
from infra.aws.account_facts import (
    Caller,
    Concurrency,
    DiskKey,
    DryLaunch,
    DryRun,
    ImageRules,
    KeyFacts,
    NetworkCount,
    OwnBucket,
    PublicAccess,
    TypeFacts,
)
from infra.aws.account_reader import aws_clients, read_account, read_concurrency
from infra.aws.company_reader import find_own_bucket, read_own_bucket
from infra.aws.deployer import deployer_policy
from infra.aws.settings import Settings
from infra.findings import Unknown

SETTINGS = Settings("vision", "111111111111", "us-east-1", "pools.yaml", "a" * 64)
KEY = "arn:aws:kms:us-east-1:111111111111:key/1"
CLUSTER = check_cluster(
    "resource_pools: [{pool_name: default, provider: {type: aws, image_id: ami-7, offerings: "
    "[{instance_type: g5.xlarge, market: spot}, {instance_type: g5.xlarge}]}}]\n"
)
PLAN = {
    "accountId": "111111111111",
    "accountPlanType": "FREE",
    "accountPlanStatus": "ACTIVE",
}
ROLE = "arn:aws:iam::111111111111:role/teams/deployer"
PROFILE = {
    "Path": "/",
    "InstanceProfileName": "detcloud-vision-instance",
    "InstanceProfileId": "A" * 16,
    "Arn": "arn:aws:iam::111111111111:instance-profile/detcloud-vision-instance",
    "CreateDate": "2026-01-01T00:00:00Z",
    "Roles": [],
}
SESSION = "arn:aws:sts::111111111111:assumed-role/deployer/ann"


class Aws:
    """AWS clients with prepared answers, in order."""

    def __init__(self) -> None:
        self._stubs: dict[str, Stubber] = {}

    def __call__(self, service: str) -> Any:
        return self._stub(service).client

    def answer(self, service: str, operation: str, answer: Any, request: Any = None) -> None:
        self._stub(service).add_response(operation, answer, request)

    def refuse(self, service: str, operation: str, code: str, message: str = "") -> None:
        self._stub(service).add_client_error(operation, code, message)

    def _stub(self, service: str) -> Stubber:
        if service not in self._stubs:
            client = new_session().create_client(
                service, "us-east-1", aws_access_key_id="k", aws_secret_access_key="s"
            )
            self._stubs[service] = Stubber(client)
            self._stubs[service].activate()
        return self._stubs[service]


def answer_launches(aws: Aws) -> None:
    """Prepare EC2's answers about images, launches with DryRun and rules of the account."""
    images = {"Images": [{"ImageId": "ami-7", "Architecture": "x86_64"}]}
    aws.answer("ec2", "describe_images", images, {"ImageIds": ["ami-7"]})
    subnet = {"SubnetId": "subnet-a", "AvailabilityZone": "us-east-1a"}
    aws.answer("ec2", "describe_subnets", {"Subnets": [subnet]})
    aws.answer("ec2", "describe_security_groups", {"SecurityGroups": [{"GroupId": "sg-1"}]})
    # The root device of the pool's image.
    aws.answer("ec2", "describe_images", images, {"ImageIds": ["ami-7"]})
    for _ in ("spot", "on-demand"):
        for operation in ("create_launch_template", "create_fleet", "run_instances"):
            aws.refuse("ec2", operation, "DryRunOperation")
    aws.answer("ec2", "get_allowed_images_settings", {"State": "disabled"})
    off = {"VpcBlockPublicAccessOptions": {"InternetGatewayBlockMode": "off"}}
    aws.answer("ec2", "describe_vpc_block_public_access_options", off)


def answer_everything(aws: Aws, denied: tuple[str, ...] = ()) -> None:
    aws.answer("sts", "get_caller_identity", {"Account": "111111111111", "Arn": SESSION})
    aws.answer("iam", "get_instance_profile", {"InstanceProfile": PROFILE})
    role = {"Path": "/teams/", "RoleName": "deployer", "RoleId": "A" * 16, "Arn": ROLE}
    created = {"CreateDate": "2026-01-01T00:00:00Z"}
    aws.answer("iam", "get_role", {"Role": {**role, **created}}, {"RoleName": "deployer"})
    for statement in deployer_policy(SETTINGS)["Statement"]:
        is_about_nothing = statement["Resource"] == ["*"]
        services = dict.fromkeys(action.partition(":")[0] for action in statement["Action"])
        for service in [""] if is_about_nothing else services:
            actions = [item for item in statement["Action"] if item.startswith(service)]
            results = [
                {
                    "EvalActionName": action,
                    "EvalDecision": "implicitDeny" if action in denied else "allowed",
                }
                for action in actions
            ]
            request = {"PolicySourceArn": ROLE, "ActionNames": actions}
            if not is_about_nothing:
                request["ResourceArns"] = ANY
            request["ContextEntries"] = ANY
            answer = {"EvaluationResults": results, "IsTruncated": False}
            aws.answer("iam", "simulate_principal_policy", answer, request)
    aws.refuse("iam", "get_role", "NoSuchEntity")
    for code, vcpus in (("L-3819A6DF", 8.0), ("L-DB2E81BA", 0.0)):
        request = {"ServiceCode": "ec2", "QuotaCode": code}
        aws.answer("service-quotas", "get_service_quota", {"Quota": {"Value": vcpus}}, request)
    wanted = [{"Name": "instance-type", "Values": ["g5.xlarge"]}]
    described = {
        "InstanceType": "g5.xlarge",
        "VCpuInfo": {"DefaultVCpus": 4},
        "ProcessorInfo": {"SupportedArchitectures": ["x86_64"]},
        "GpuInfo": {"Gpus": [{"Manufacturer": "NVIDIA", "Name": "A10G", "Count": 1}]},
        "SupportedUsageClasses": ["on-demand", "spot"],
    }
    request = {"Filters": wanted}
    aws.answer("ec2", "describe_instance_types", {"InstanceTypes": [described]}, request)
    places = [{"InstanceType": "g5.xlarge", "Location": f"us-east-1{name}"} for name in "ab"]
    request = {"Filters": wanted, "LocationType": "availability-zone"}
    offered = {"InstanceTypeOfferings": places}
    aws.answer("ec2", "describe_instance_type_offerings", offered, request)
    aws.answer("ec2", "get_ebs_default_kms_key_id", {"KmsKeyId": "alias/aws/ebs"})
    answer_launches(aws)
    quota = {"ServiceCode": "vpc", "QuotaCode": "L-F678F1CE"}
    aws.answer("service-quotas", "get_service_quota", {"Quota": {"Value": 5.0}}, quota)
    aws.answer("freetier", "get_account_plan_state", PLAN)
    limits = {"ConcurrentExecutions": 1000, "UnreservedConcurrentExecutions": 996}
    aws.answer("lambda", "get_account_settings", {"AccountLimit": limits})
    aws.answer("lambda", "get_function_concurrency", {})
    aws.answer("lambda", "get_function_concurrency", {"ReservedConcurrentExecutions": 2})
    aws.answer("lambda", "get_function_concurrency", {"ReservedConcurrentExecutions": 2})
    aws.answer("lambda", "get_function_concurrency", {"ReservedConcurrentExecutions": 1})
    aws.refuse("lambda", "get_function_concurrency", "ResourceNotFoundException")
    aws.answer("ssm", "get_parameters", {"Parameters": [{"Value": "ami-1"}]})
    own = {"Key": "detcloud-cluster", "Value": "detcloud-vision"}
    vpcs = [{"VpcId": "vpc-1"}, {"VpcId": "vpc-2", "Tags": [own]}]
    aws.answer("ec2", "describe_vpcs", {"Vpcs": vpcs})


def test_reads_all_facts_of_an_account() -> None:
    aws = Aws()
    answer_everything(aws, denied=("s3:CreateBucket",))
    facts = read_account(SETTINGS, CLUSTER, aws)
    assert facts.caller == Caller("111111111111", SESSION)
    assert facts.denied == ("s3:CreateBucket",)
    assert facts.quotas == {"L-3819A6DF": 8.0, "L-DB2E81BA": 0.0}
    assert facts.types == {
        "g5.xlarge": TypeFacts(4, frozenset({"x86_64"}), (("NVIDIA", "A10G"),), gpu_count=1),
    }
    assert facts.zones == {"g5.xlarge": frozenset({"us-east-1a", "us-east-1b"})}
    assert facts.disk_key == DiskKey("alias/aws/ebs", is_own=False)
    # tick and checkpoint_gc reserve 3. The api reserves none, and suggest does not exist yet.
    assert facts.concurrency == Concurrency(1000, 996, 5)
    assert facts.image == "ami-1"
    assert facts.plan == "FREE"
    assert facts.networks == NetworkCount(2, 5.0, has_own=True)
    assert facts.image_architectures == {"ami-7": "x86_64"}
    works = dict.fromkeys(
        ("CreateLaunchTemplate", "CreateFleet", "RunInstances"), DryRun("DryRunOperation")
    )
    assert facts.launches == (
        DryLaunch("default", "g5.xlarge spot", works),
        DryLaunch("default", "g5.xlarge on-demand", works),
    )
    assert facts.image_rules == ImageRules("disabled")
    assert facts.public_access == PublicAccess("off")
    assert facts.has_spot_role is False


def test_refused_call_leaves_only_the_fact_unknown() -> None:
    aws = Aws()
    aws.refuse("sts", "get_caller_identity", "ExpiredToken")
    for service, operation in (
        ("service-quotas", "get_service_quota"),
        ("service-quotas", "get_service_quota"),
        ("ec2", "describe_instance_types"),
        ("ec2", "describe_instance_type_offerings"),
        ("ec2", "get_ebs_default_kms_key_id"),
        ("freetier", "get_account_plan_state"),
        ("lambda", "get_account_settings"),
        ("ssm", "get_parameters"),
        ("ec2", "describe_images"),
        ("iam", "get_instance_profile"),
        ("ec2", "get_allowed_images_settings"),
        ("ec2", "describe_vpc_block_public_access_options"),
        ("iam", "get_role"),
        ("ec2", "describe_vpcs"),
    ):
        aws.refuse(service, operation, "AccessDenied")
    facts = read_account(SETTINGS, CLUSTER, aws)
    why = "AWS answered AccessDenied"
    assert facts.caller == Unknown("sts:GetCallerIdentity", "AWS answered ExpiredToken")
    assert isinstance(facts.denied, Unknown)
    assert set(facts.quotas.values()) == {Unknown("servicequotas:GetServiceQuota", why)}
    assert facts.types == Unknown("ec2:DescribeInstanceTypes", why)
    assert facts.zones == Unknown("ec2:DescribeInstanceTypeOfferings", why)
    assert facts.disk_key == Unknown("ec2:GetEbsDefaultKmsKeyId", why)
    needs = "lambda:GetAccountSettings and lambda:GetFunctionConcurrency"
    assert facts.concurrency == Unknown(needs, why)
    needs = "ec2:DescribeVpcs and servicequotas:GetServiceQuota"
    assert facts.networks == Unknown(needs, why)
    assert facts.plan == Unknown("freetier:GetAccountPlanState", why)
    assert facts.image == Unknown("ssm:GetParameters", why)
    assert facts.image_architectures == Unknown("ec2:DescribeImages", why)
    needs = "ec2:DescribeSubnets, ec2:DescribeSecurityGroups and iam:GetInstanceProfile"
    assert facts.launches == Unknown(needs, why)
    needs = "ec2:GetAllowedImagesSettings and ec2:DescribeImages"
    assert facts.image_rules == Unknown(needs, why)
    assert isinstance(facts.public_access, Unknown)
    assert facts.has_spot_role == Unknown("iam:GetRole", why)


def test_refused_function_leaves_the_concurrency_unknown() -> None:
    # A reservation of 0 for an unreadable function would count free runs twice.
    aws = Aws()
    limits = {"ConcurrentExecutions": 1000, "UnreservedConcurrentExecutions": 996}
    aws.answer("lambda", "get_account_settings", {"AccountLimit": limits})
    aws.refuse("lambda", "get_function_concurrency", "AccessDenied")
    needs = "lambda:GetAccountSettings and lambda:GetFunctionConcurrency"
    assert read_concurrency(SETTINGS, aws) == Unknown(needs, "AWS answered AccessDenied")


def test_permissions_of_the_root_user_are_unknown() -> None:
    # Policies of an organization limit the root user, whom IAM does not simulate.
    aws = Aws()
    root = {"Account": "111111111111", "Arn": "arn:aws:iam::111111111111:root"}
    aws.answer("sts", "get_caller_identity", root)
    denied = read_quietly(aws).denied
    assert isinstance(denied, Unknown)
    assert denied.needs == "credentials of a user or a role"


@pytest.mark.parametrize(
    ("status", "rules", "expected"),
    [
        ({}, None, OwnBucket("ours", keeps_versions=False)),
        ({"Status": "Suspended"}, None, OwnBucket("ours", keeps_versions=False)),
        ({"Status": "Enabled"}, [], OwnBucket("ours", keeps_versions=True)),
        (
            {"Status": "Enabled"},
            [{"Status": "Enabled", "NoncurrentVersionExpiration": {"NoncurrentDays": 7}}],
            OwnBucket("ours", keeps_versions=True, deletes_versions=True),
        ),
        (
            {"Status": "Enabled"},
            [{"Status": "Disabled", "NoncurrentVersionExpiration": {"NoncurrentDays": 7}}],
            OwnBucket("ours", keeps_versions=True),
        ),
    ],
)
def test_reads_whether_a_teams_bucket_keeps_versions(
    status: dict[str, str], rules: list[Any] | None, expected: OwnBucket
) -> None:
    aws = Aws()
    aws.answer("s3", "get_bucket_versioning", status, {"Bucket": "ours"})
    if rules:
        aws.answer("s3", "get_bucket_lifecycle_configuration", {"Rules": rules})
    elif rules is not None:
        code = "NoSuchLifecycleConfiguration"
        aws.refuse("s3", "get_bucket_lifecycle_configuration", code)
    assert read_own_bucket(aws, "ours") == expected


@pytest.mark.parametrize(
    ("storage", "expected"),
    [
        ("", ""),
        ("checkpoint_storage: {type: s3, bucket: ours}\n", "ours"),
        # Another store than Amazon's needs other credentials.
        (
            "checkpoint_endpoints: ['https://s3.example.com']\ncheckpoint_storage: {type: s3, "
            "bucket: ours, endpoint_url: 'https://s3.example.com', access_key: a, secret_key: b}\n",
            "",
        ),
    ],
)
def test_own_bucket_is_amazons_bucket_of_the_configuration(storage: str, expected: str) -> None:
    assert find_own_bucket(check_cluster(storage)) == expected


def test_older_account_has_no_plan() -> None:
    aws = Aws()
    aws.refuse("freetier", "get_account_plan_state", "ResourceNotFoundException")
    assert read_quietly(aws).plan == ""


def test_account_plans_are_read_in_us_east_1() -> None:
    # The service exists only in us-east-1.
    clients = aws_clients("eu-west-1")
    assert clients("freetier").meta.region_name == "us-east-1"
    assert clients("ec2").meta.region_name == "eu-west-1"


def test_missing_image_is_a_known_fact() -> None:
    aws = Aws()
    aws.refuse("ec2", "describe_instance_types", "AccessDenied")
    aws.refuse("ec2", "describe_instance_type_offerings", "AccessDenied")
    aws.refuse("ec2", "get_ebs_default_kms_key_id", "AccessDenied")
    aws.refuse("ec2", "describe_images", "InvalidAMIID.NotFound")
    assert read_quietly(aws).image_architectures == {}


def test_reads_the_services_that_a_key_policy_allows() -> None:
    aws = Aws()
    aws.answer("kms", "describe_key", {"KeyMetadata": {"KeyId": "1", "KeyState": "Enabled"}})
    policy = (
        '{"Statement": [{"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": "kms:*"}, '
        '{"Effect": "Allow", "Principal": {"Service": "logs.us-east-1.amazonaws.com"}}, '
        '{"Effect": "Deny", "Principal": {"Service": "s3.amazonaws.com"}}]}'
    )
    aws.answer("kms", "get_key_policy", {"Policy": policy})
    aws.refuse("iam", "get_role", "NoSuchEntity")
    settings = Settings("vision", "1" * 12, "us-east-1", "pools.yaml", "a" * 64, kms_key=KEY)
    facts = read_quietly(aws, settings)
    assert facts.key == KeyFacts("Enabled", frozenset({"logs.us-east-1.amazonaws.com"}))
    assert facts.has_spot_role is False


def read_quietly(aws: Aws, settings: Settings = SETTINGS) -> Any:
    """Read an account in which calls without a prepared answer are refused."""

    def clients(service: str) -> Any:
        client = aws(service)
        return QuietClient(client)

    return read_account(settings, CLUSTER, clients)


class QuietClient:
    """A client that refuses calls without a prepared answer."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._client, name)

        def call(*words: Any, **request: Any) -> Any:
            try:
                return method(*words, **request)
            except UnStubbedResponseError:
                raise ClientError({"Error": {"Code": "AccessDenied"}}, name) from None

        return method if name == "get_paginator" else call


@pytest.mark.parametrize("service", ["ec2", "iam", "lambda", "kms", "service-quotas", "ssm"])
def test_each_client_uses_the_stacks_region(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    clients = aws_clients("eu-west-1")
    assert clients(service) is clients(service)
    region = clients(service).meta.region_name
    assert region == ("aws-global" if service == "iam" else "eu-west-1")
