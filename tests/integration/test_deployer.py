"""Creating a stack with the rights of the deployer's policy alone.

The emulator checks signatures, and actions and resources of most services. It ignores tags of
requests and resources, and the roles that may be passed. Conditions on tags and roles are therefore
removed, and the calls of UNPLACED get any resource. Unit tests read these statements.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from control_plane.config.pools import check_cluster
from infra.aws.account_checks import check_facts
from infra.aws.account_reader import read_account
from infra.aws.deployer import deployer_policy
from infra.aws.policy_statements import make_statement
from infra.aws.program import run
from infra.aws.settings import Settings, parse_settings
from infra.findings import Level
from tests.emulators.ec2.region import Region
from tests.emulators.ec2.serving import ec2_server
from tests.emulators.materialise import EmulatorMaker, materialise
from tests.emulators.ministack import ACCOUNT, REGION, Ministack, ministack
from tests.integration.team_stack import team_config

COMPANY = {
    "detcloud:permissionsBoundary": f"arn:aws:iam::{ACCOUNT}:policy/boundary",
    "detcloud:iamPrefix": "corp-",
    "detcloud:tags": '{"cost-center": "42"}',
    "detcloud:privateSubnets": "true",
    "detcloud:endpoints": '["ecr.api"]',
    "detcloud:domain": "ml.example.com",
    "detcloud:certificate": f"arn:aws:acm:{REGION}:{ACCOUNT}:certificate/1",
}
ZONES = (f"{REGION}a", f"{REGION}b")
SETTINGS = Settings("vision", ACCOUNT, REGION, "pools.yaml", "a" * 64, zones=ZONES)
UNPLACED = re.compile("(ec2|events|lambda|ssm):|iam:.*InstanceProfile")


@pytest.fixture(scope="module")
def account(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ministack]:
    with ministack(tmp_path_factory.mktemp("account"), enforces_iam=True) as running:
        yield running


@pytest.fixture(scope="module")
def bob(account: Ministack) -> Ministack:
    """Return the account for the user who deploys the team vision."""
    return deployer(account, "bob", SETTINGS)


def deployer(account: Ministack, name: str, settings: Settings) -> Ministack:
    """Return the account for a new user with the policy for these settings."""
    iam = account.client("iam")
    iam.create_user(UserName=name)
    policy = deployer_policy(settings)
    # Without its condition, a denial would deny every call.
    policy["Statement"] = [
        item for item in policy["Statement"] if item["Effect"] == "Allow" or "Condition" not in item
    ]
    for statement in policy["Statement"]:
        statement.pop("Condition", None)
    actions = {action for statement in policy["Statement"] for action in statement["Action"]}
    unplaced = sorted(filter(UNPLACED.match, actions))
    policy["Statement"].append(make_statement("Unplaced", unplaced, ["*"]))
    text = json.dumps(policy)
    iam.put_user_policy(UserName=name, PolicyName="deployer", PolicyDocument=text)
    keys = iam.create_access_key(UserName=name)["AccessKey"]
    return Ministack(account.url, keys["AccessKeyId"], keys["SecretAccessKey"])


def test_deployer_policy_is_sufficient_for_a_stack_with_company_rules(
    account: Ministack, tmp_path: Path
) -> None:
    """The stack has a key, bounded roles, private subnets, a domain and all standard parts.

    The emulator omits paths from the names of roles.
    """
    key = account.client("kms").create_key()["KeyMetadata"]["Arn"]
    zone = account.client("route53").create_hosted_zone(Name="example.com", CallerReference="1")
    everything = {"Effect": "Allow", "Action": "*", "Resource": "*"}
    account.client("iam").create_policy(
        PolicyName="boundary",
        PolicyDocument=json.dumps({"Version": "2012-10-17", "Statement": [everything]}),
    )
    named = {
        "detcloud:kmsKey": key,
        "detcloud:hostedZone": zone["HostedZone"]["Id"].rpartition("/")[2],
    }
    # The emulator has no ARNs of dashboards, so that no policy can allow a dashboard by name.
    config = {**team_config(tmp_path), **COMPANY, **named, "detcloud:dashboard": "false"}
    texts = {name.partition(":")[2]: text for name, text in config.items()}
    ann = deployer(account, "ann", parse_settings("vision", texts))
    outputs = materialise(run, "vision", config, EmulatorMaker(ann))
    assert outputs["url"] == "https://ml.example.com"
    table = account.client("dynamodb").describe_table(TableName="detcloud-vision")["Table"]
    assert table["SSEDescription"]["KMSMasterKeyArn"] == key
    role = account.client("iam").get_role(RoleName="corp-detcloud-vision-tick")["Role"]
    bounds = role["PermissionsBoundary"]["PermissionsBoundaryArn"]
    assert bounds == COMPANY["detcloud:permissionsBoundary"]
    grants = account.client("kms").list_grants(KeyId=key)["Grants"]
    assert [grant["Name"] for grant in grants] == ["detcloud-vision-spot"]


@pytest.mark.parametrize(
    ("service", "operation", "parameters"),
    [
        ("sqs", "create_queue", {"QueueName": "detcloud-speech-dead-letters"}),
        ("s3", "create_bucket", {"Bucket": f"detcloud-speech-objects-{ACCOUNT}"}),
        ("iam", "delete_role", {"RoleName": "detcloud-speech-api"}),
        ("dynamodb", "delete_table", {"TableName": "detcloud-speech"}),
    ],
)
def test_deployer_policy_does_not_reach_other_teams(
    service: str, operation: str, parameters: dict[str, str], bob: Ministack
) -> None:
    with pytest.raises(ClientError, match=r"AccessDenied"):
        getattr(bob.client(service), operation)(**parameters)


def test_deployer_credentials_are_sufficient_to_check_the_account(bob: Ministack) -> None:
    cluster = check_cluster(
        "resource_pools: [{pool_name: default, provider: {type: aws, offerings: "
        "[{instance_type: g5.xlarge, market: spot}]}}]\n"
    )
    region = Region(lambda: 0)
    # A zone without this instance type.
    region.not_offered.add(("g5.xlarge", ZONES[1]))
    with ec2_server(region) as ec2:

        def clients(service: str) -> object:
            return ec2.client() if service == "ec2" else bob.client(service)

        findings = check_facts(SETTINGS, cluster, read_account(SETTINGS, cluster, clients))
    by_subject = {finding.subject: finding for finding in findings}
    assert by_subject["credentials"].level is Level.FINE
    assert by_subject["permissions"].level is Level.FINE, by_subject["permissions"]
    # The emulator has neither AWS's public parameters nor Service Quotas.
    assert by_subject["image"].level is Level.ERROR
    pool = by_subject["pool default, g5.xlarge spot"]
    assert pool.level is Level.WARNING
    assert pool.text.startswith(f"not offered in {ZONES[1]}; it is offered in {ZONES[0]}")
    assert by_subject["quota L-3819A6DF"].text.startswith("could not be checked: AWS answered")
