"""The deployer's policy on AWS: exactly the actions that the stack's resources need."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from detcloud.shared.aws import new_session
from infra.aws.deployer import (
    EXAMPLE,
    NEEDS,
    POLICY_FILE,
    actions_needed,
    deployer_policy,
    launch_policy,
    render_policy,
    split_actions,
)
from infra.aws.policy_statements import Document
from infra.aws.settings import Settings
from infra.copy_settings import Copies
from tests.emulators.policy_reader import allows
from tests.unit.infra.graphs import KEY, Graph

SETTINGS = Settings("vision", "111111111111", "us-east-1", "pools.yaml", "a" * 64)
ACL = "arn:aws:wafv2:us-east-1:111111111111:global/webacl/company/1234-ab"
COPIES = Copies("us-west-2")
OTHER = replace(SETTINGS, team="speech")
EC2 = "arn:aws:ec2:us-east-1:111111111111"
TAG = "detcloud-cluster"
# IAM's names of services, with botocore's name if it differs.
SERVICES = {
    "elasticfilesystem": "efs",
    "servicequotas": "service-quotas",
    "tag": "resourcegroupstaggingapi",
}
# Permissions without an operation of the same name, by the service authorization reference.
NO_OPERATIONS = {
    "budgets:ModifyBudget",
    "budgets:ViewBudget",
    "iam:PassRole",
    "lambda:InvokeFunction",
    "logs:CreateLogDelivery",
    "logs:DeleteLogDelivery",
    "logs:GetLogDelivery",
    "logs:ListLogDeliveries",
    "logs:UpdateLogDelivery",
    "s3:DeleteObjectVersion",
    "s3:ListBucket",
    "s3:ListBucketVersions",
    "s3:GetBucketPublicAccessBlock",
    "s3:PutBucketPublicAccessBlock",
    "s3:GetLifecycleConfiguration",
    "s3:PutLifecycleConfiguration",
    "s3:GetBucketObjectLockConfiguration",
    "s3:GetBucketCORS",
    "s3:GetEncryptionConfiguration",
    "s3:PutEncryptionConfiguration",
    "s3:GetReplicationConfiguration",
    "s3:PutReplicationConfiguration",
}
VERBS = {"DELETE", "GET", "PATCH", "POST", "PUT"}


def test_policy_file_is_current() -> None:
    assert POLICY_FILE.read_text() == render_policy(EXAMPLE), "run python -m infra.aws.deployer"


def test_all_aws_resource_types_have_needed_actions(
    vision: Graph, speech: Graph, bank: Graph, front_stack: Graph, copied_stack: Graph
) -> None:
    types = {
        resource.type
        for graph in (vision, speech, bank, front_stack, copied_stack)
        for resource in graph.resources
        if resource.type.startswith("aws:")
    }
    assert types == set(NEEDS)


def test_policy_has_only_existing_aws_actions() -> None:
    session = new_session()
    unknown = []
    for action in sorted(actions_needed() - NO_OPERATIONS):
        service, _, name = action.partition(":")
        if service == "apigateway":
            assert name in VERBS
            continue
        model = session.get_service_model(SERVICES.get(service, service))
        # S3's actions leave a word out of some operations.
        names = {name, re.sub("^(Get|Put)(?=[A-Z])", r"\1Bucket", name)}
        unknown += [] if names & set(model.operation_names) else [action]
    assert unknown == []


@pytest.mark.parametrize("kind", NEEDS)
def test_policy_allows_the_actions_of_each_resource_type(kind: str) -> None:
    """The next tests check the resources of the statements."""
    settings = replace(
        SETTINGS, kms_key=KEY, hosted_zone="Z1", web_acl=ACL, copies=COPIES, dashboard=True
    )
    policy = deployer_policy(settings)
    allowed = {item for statement in policy["Statement"] for item in statement["Action"]}
    assert set(split_actions(NEEDS[kind])) <= allowed


def test_policy_allows_only_needed_actions() -> None:
    settings = replace(
        SETTINGS,
        kms_key=KEY,
        hosted_zone="Z1",
        permissions_boundary="arn:b",
        web_acl=ACL,
        copies=COPIES,
        dashboard=True,
    )
    policy = deployer_policy(settings)
    allowed = {item for statement in policy["Statement"] for item in statement["Action"]}
    # The stores use a key in the caller's name, in addition to grants.
    stores = {
        f"kms:{name}"
        for name in ("Decrypt", "Encrypt", "GenerateDataKey", "ReEncryptFrom", "ReEncryptTo")
    }
    assert allowed - stores == set(actions_needed())


def test_launch_policy_covers_the_launches_of_the_tick_alone() -> None:
    own = {f"aws:RequestTag/{TAG}": "detcloud-vision"}
    policy = launch_policy(SETTINGS)
    assert allows(policy, "ec2:RunInstances", f"{EC2}:instance/*", own)
    assert not allows(policy, "ec2:RunInstances", f"{EC2}:instance/*")
    assert allows(policy, "ec2:RunInstances", f"{EC2}:capacity-reservation/cr-1")
    assert not allows(policy, "ec2:TerminateInstances", f"{EC2}:instance/i-1", own)
    # Without the second policy, a deployer cannot launch.
    for action in ("ec2:RunInstances", "ec2:CreateFleet"):
        assert not allows(deployer_policy(SETTINGS), action, f"{EC2}:instance/*", own)


# A hosted zone needs a domain, and a domain excludes a web ACL.
@pytest.mark.parametrize("longest", [{"hosted_zone": "Z" * 32}, {"web_acl": f"{ACL}{'c' * 80}"}])
@pytest.mark.parametrize("exclusive", [{"kms_key": KEY}, {"copies": COPIES}])
def test_policy_fits_into_an_inline_policy(
    longest: dict[str, str], exclusive: dict[str, Any]
) -> None:
    # IAM's quota for the inline policies of a role, white space not counted.
    given: dict[str, Any] = {"team": "a" * 20, "iam_prefix": "b" * 20, **exclusive, **longest}
    settings = replace(SETTINGS, **given)
    assert len(re.sub(r"\s", "", render_policy(settings))) < 10_240
    # With a dashboard, a team's name of 15 characters and an ARN of 75 more characters fit.
    shorter: dict[str, Any] = {"team": "a" * 15, "iam_prefix": "b" * 15, "dashboard": True}
    settings = replace(settings, **shorter, web_acl=settings.web_acl[:-5])
    assert len(re.sub(r"\s", "", render_policy(settings))) < 10_240


@pytest.mark.parametrize(
    ("action", "own", "others"),
    [
        ("dynamodb:CreateTable", SETTINGS.names.table_arn, OTHER.names.table_arn),
        ("iam:PutRolePolicy", SETTINGS.names.role_arn("api"), OTHER.names.role_arn("api")),
        (
            "lambda:UpdateFunctionCode",
            SETTINGS.names.function_arn("api"),
            OTHER.names.function_arn("api"),
        ),
        (
            "s3:DeleteObject",
            f"arn:aws:s3:::{SETTINGS.names.checkpoints}/1/x",
            f"arn:aws:s3:::{OTHER.names.checkpoints}/1/x",
        ),
        ("sqs:DeleteQueue", SETTINGS.names.dead_letters_arn, OTHER.names.dead_letters_arn),
        ("sns:CreateTopic", SETTINGS.names.alarms_arn, OTHER.names.alarms_arn),
        (
            "logs:CreateLogGroup",
            SETTINGS.names.log_group_arn("api"),
            OTHER.names.log_group_arn("api"),
        ),
    ],
)
def test_policy_reaches_only_the_teams_resources(action: str, own: str, others: str) -> None:
    policy = deployer_policy(SETTINGS)
    assert allows(policy, action, own)
    assert not allows(policy, action, others)


def network_calls(policy: Document, action: str, kind: str) -> tuple[bool, bool, bool]:
    """Return whether an action is allowed on a new, an own and a foreign resource, by tags."""
    arn = f"{EC2}:{kind}/x"
    requested = {f"aws:RequestTag/{TAG}": "detcloud-vision"}
    owned = {f"ec2:ResourceTag/{TAG}": "detcloud-vision"}
    others = {f"ec2:ResourceTag/{TAG}": "detcloud-speech"}
    new, own, foreign = (allows(policy, action, arn, item) for item in (requested, owned, others))
    return new, own, foreign


@pytest.mark.parametrize(
    ("action", "kind", "expected"),
    [
        ("ec2:CreateSubnet", "subnet", (True, True, False)),
        ("ec2:CreateNatGateway", "natgateway", (True, True, False)),
        ("ec2:AuthorizeSecurityGroupIngress", "security-group-rule", (True, True, False)),
        ("ec2:CreateRoute", "route-table", (False, True, False)),
        ("ec2:DeleteVpc", "vpc", (False, True, False)),
        ("ec2:TerminateInstances", "instance", (False, True, False)),
        ("ec2:DeleteLaunchTemplate", "launch-template", (False, True, False)),
    ],
)
def test_policy_protects_networks_and_instances_of_foreign_teams(
    action: str, kind: str, expected: tuple[bool, bool, bool]
) -> None:
    assert network_calls(deployer_policy(SETTINGS), action, kind) == expected


def test_roles_may_be_passed_only_to_functions_and_instances() -> None:
    policy, role = deployer_policy(SETTINGS), SETTINGS.names.role_arn("tick")
    for service, is_allowed in (("lambda", True), ("ec2", True), ("glue", False)):
        context = {"iam:PassedToService": f"{service}.amazonaws.com"}
        assert allows(policy, "iam:PassRole", role, context) is is_allowed
    assert not allows(policy, "iam:PassRole", OTHER.names.role_arn("tick"))


def test_boundary_is_required_for_each_new_role() -> None:
    boundary = "arn:aws:iam::111111111111:policy/b"
    policy = deployer_policy(replace(SETTINGS, permissions_boundary=boundary))
    within, keep = (item for item in policy["Statement"] if item["Effect"] == "Deny")
    assert within["Condition"] == {"StringNotEquals": {"iam:PermissionsBoundary": boundary}}
    assert "iam:CreateRole" in within["Action"]
    assert keep["Action"] == ["iam:DeleteRolePermissionsBoundary"]
    assert "Condition" not in keep


def test_policy_uses_the_path_and_prefix_of_roles() -> None:
    settings = replace(SETTINGS, iam_path="/teams/", iam_prefix="corp-")
    text = json.dumps(deployer_policy(settings))
    assert "arn:aws:iam::111111111111:role/teams/corp-detcloud-vision-*" in text
