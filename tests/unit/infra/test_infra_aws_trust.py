"""The AWS account of a cluster on Google Cloud: scripts on an emulator, permissions, and checks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import require

for package in ("botocore", "boto3", "pulumi_gcp"):
    require(package)

from botocore.exceptions import ClientError, NoCredentialsError  # noqa: E402

from control_plane.config.pools import ClusterConfig, check_cluster  # noqa: E402
from infra.aws import policies  # noqa: E402
from infra.aws.names import Names  # noqa: E402
from infra.aws.remote_account import AwsRemoteAccount, AwsRemoteSettings  # noqa: E402
from infra.aws.settings import Network  # noqa: E402
from infra.findings import Finding, Level  # noqa: E402
from infra.gcp.pool_checks import find_pool_problems  # noqa: E402
from infra.gcp.settings import parse_settings  # noqa: E402
from infra.remote_accounts import Launcher  # noqa: E402
from infra.stack_program import DrainFailed, SettingsInvalid  # noqa: E402
from lambdas.other_clouds import VARIABLE  # noqa: E402
from provisioner.clouds.aws.federation import federation_audience  # noqa: E402
from provisioner.clouds.provider import CLUSTER_TAG  # noqa: E402
from tests.emulators.aws_command import run_aws_script  # noqa: E402
from tests.emulators.aws_remote import make_remote_network  # noqa: E402
from tests.emulators.ministack import ACCOUNT, REGION, Ministack  # noqa: E402
from tests.emulators.policy_reader import allows  # noqa: E402
from tests.unit.infra.gcp_graphs import VISION, environments, gcp_graph  # noqa: E402

EMAIL = "dc-abroad-tick@acme-ml.iam.gserviceaccount.com"
LAUNCHER = Launcher("gcp", "acme-ml", "abroad", EMAIL)
SUBJECT = "115812345678901234567"
# The account is shared with tests of other teams.
NAMES = Names("abroad", ACCOUNT, REGION)
LEAST = {
    "project": "acme-ml",
    "projectNumber": "123456789012",
    "region": "us-central1",
    "clusterConfig": "pools.yaml",
    "adminSha256": "a" * 64,
}


def description(**given: Any) -> dict[str, Any]:
    return {
        "account": ACCOUNT,
        "region": REGION,
        "subnets": {f"{REGION}a": "subnet-1a"},
        "securityGroup": "sg-5",
        **given,
    }


def remote(clients: Any = None, **given: Any) -> AwsRemoteAccount:
    settings = AwsRemoteSettings.model_validate_json(json.dumps(description(**given)))
    return AwsRemoteAccount(settings, LAUNCHER, clients)


def pools(provider: str = "{type: aws}") -> ClusterConfig:
    return check_cluster(f"resource_pools: [{{pool_name: default, provider: {provider}}}]")


@pytest.fixture
def network(strict_aws: Ministack) -> dict[str, Any]:
    """A subnet and a security group in the emulated account."""
    return make_remote_network(strict_aws, "abroad")


def part_findings(made: AwsRemoteAccount, config: ClusterConfig) -> list[Finding]:
    """Return the findings about the remote account's parts, without the findings about pools."""
    return made.find_findings(config)[:4]


def test_trust_script_creates_roles_that_pass_the_check(
    strict_aws: Ministack, network: dict[str, Any], tmp_path: Path
) -> None:
    made, config = remote(strict_aws.client, **network), pools("{type: aws, log_group: /vision}")
    assert {part_finding.level for part_finding in part_findings(made, config)} == {
        Level.FINE,
        Level.ERROR,
    }
    script = made.commands(config)
    refused, carried_out = run_aws_script(tmp_path, strict_aws.client, script)
    assert (refused.returncode, carried_out) == (2, [])
    assert f"gcloud iam service-accounts describe {EMAIL}" in refused.stderr
    done, carried_out = run_aws_script(tmp_path, strict_aws.client, script, SUBJECT)
    assert done.returncode == 0, done.stderr
    assert carried_out.count("create-role") == 2
    trust = strict_aws.client("iam").get_role(RoleName=NAMES.role("launcher"))["Role"]
    [statement] = trust["AssumeRolePolicyDocument"]["Statement"]
    assert statement["Principal"] == {"Federated": "accounts.google.com"}
    assert statement["Condition"] == {
        "StringEquals": {
            "accounts.google.com:aud": SUBJECT,
            "accounts.google.com:oaud": "detcloud-aws:detcloud-abroad",
            "accounts.google.com:sub": SUBJECT,
        }
    }
    findings = part_findings(made, config)
    assert {finding.level for finding in findings} == {Level.FINE}, findings
    again, carried_out = run_aws_script(tmp_path, strict_aws.client, script, SUBJECT)
    assert again.returncode == 0, again.stderr
    assert not [name for name in carried_out if name.startswith(("create", "add"))]
    # An interrupted run may leave the instance profile without the role.
    instance = NAMES.role("instance")
    membership = {"InstanceProfileName": instance, "RoleName": instance}
    strict_aws.client("iam").remove_role_from_instance_profile(**membership)
    _, carried_out = run_aws_script(tmp_path, strict_aws.client, script, SUBJECT)
    assert [name for name in carried_out if name.startswith(("create", "add"))] == [
        "add-role-to-instance-profile"
    ]
    # The check notices a changed trust policy.
    trusted = json.dumps(policies.service_trust("lambda.amazonaws.com"))
    iam = strict_aws.client("iam")
    iam.update_assume_role_policy(RoleName=NAMES.role("launcher"), PolicyDocument=trusted)
    [error] = [
        part_finding
        for part_finding in part_findings(made, config)
        if part_finding.level is Level.ERROR
    ]
    assert (
        "the trust of the role detcloud-abroad-launcher differs from the expected one" in error.text
    )
    assert "`detcloud deploy trust gcp --team abroad`" in error.remedy


def test_scripts_leave_the_roles_of_a_namesake_cluster_alone(
    strict_aws: Ministack, tmp_path: Path
) -> None:
    tick = EMAIL.replace("acme-ml", "acme-other")
    namesake = Launcher("gcp", "acme-other", "namesake", tick.replace("abroad", "namesake"))
    ours = replace(namesake, account="acme-ml")
    described = AwsRemoteSettings.model_validate(description())
    theirs, made = (
        AwsRemoteAccount(described, item, strict_aws.client) for item in (namesake, ours)
    )
    done, _ = run_aws_script(tmp_path, strict_aws.client, theirs.commands(pools()), SUBJECT)
    assert done.returncode == 0, done.stderr
    for script in (made.commands(pools()), made.removal_commands()):
        done, carried_out = run_aws_script(tmp_path, strict_aws.client, script, SUBJECT)
        assert done.returncode == 1
        assert "its cluster runs in gcp/acme-other, and not gcp/acme-ml" in done.stderr
        changes = ("create", "put", "update", "delete", "remove", "add")
        assert not [name for name in carried_out if name.startswith(changes)]
    [launcher] = [
        finding for finding in made.find_findings(pools()) if finding.subject.startswith("launcher")
    ]
    assert launcher.text.startswith(
        "it belongs to another cluster of the same name, in gcp/acme-other"
    )
    assert "another name for the team" in launcher.remedy
    assert run_aws_script(tmp_path, strict_aws.client, theirs.removal_commands())[0].returncode == 0
    assert theirs.find_leftovers() == []


def test_removal_script_waits_for_instances_and_deletes_the_roles(
    strict_aws: Ministack, tmp_path: Path
) -> None:
    launcher = replace(LAUNCHER, team="leaver")
    described = AwsRemoteSettings.model_validate(description())
    made, config = (
        AwsRemoteAccount(described, launcher, strict_aws.client),
        pools("{type: aws, log_group: /v}"),
    )
    done, _ = run_aws_script(tmp_path, strict_aws.client, made.commands(config), SUBJECT)
    assert done.returncode == 0, done.stderr
    ec2, where = strict_aws.client("ec2"), f"in the account {ACCOUNT}"
    tags = [{"Key": CLUSTER_TAG, "Value": "detcloud-leaver"}]
    tagged = [{"ResourceType": "launch-template", "Tags": tags}]
    ec2.create_launch_template(
        LaunchTemplateName="leaver", LaunchTemplateData={}, TagSpecifications=tagged
    )
    machine = [{"ResourceType": "instance", "Tags": tags}]
    launched = ec2.run_instances(
        ImageId="ami-0123456789abcdef0", MinCount=1, MaxCount=1, TagSpecifications=machine
    )
    [instance] = [item["InstanceId"] for item in launched["Instances"]]
    left = made.find_leftovers()
    assert left[:3] == [
        f"the role detcloud-leaver-launcher {where}",
        f"the role detcloud-leaver-instance {where}",
        f"the instance profile detcloud-leaver-instance {where}",
    ]
    assert [name.split()[1] for name in left[3:]] == ["launch", "instance"]
    assert made.list_instances() == [instance]
    removal = made.removal_commands()
    refused, carried_out = run_aws_script(tmp_path, strict_aws.client, removal)
    assert refused.returncode == 1
    assert f"instances are left: {instance};" in refused.stderr
    assert not [name for name in carried_out if name.startswith("delete")]
    ec2.terminate_instances(InstanceIds=[instance])
    done, _ = run_aws_script(tmp_path, strict_aws.client, removal)
    assert done.returncode == 0, done.stderr
    assert made.find_leftovers() == []
    again, carried_out = run_aws_script(tmp_path, strict_aws.client, removal)
    assert again.returncode == 0, again.stderr
    assert not [name for name in carried_out if name.startswith(("delete", "remove"))]


def test_trust_script_refuses_wrong_accounts_and_existing_clusters(
    strict_aws: Ministack, tmp_path: Path
) -> None:
    other = remote(account="999999999999").commands(pools())
    done, carried_out = run_aws_script(tmp_path, strict_aws.client, other, SUBJECT)
    assert (done.returncode, carried_out) == (1, ["get-caller-identity"])
    assert "of another account than 999999999999" in done.stderr
    strict_aws.client("dynamodb").create_table(
        TableName="detcloud-abroad",
        KeySchema=[{"AttributeName": "p", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "p", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    done, carried_out = run_aws_script(
        tmp_path, strict_aws.client, remote().commands(pools()), SUBJECT
    )
    strict_aws.client("dynamodb").delete_table(TableName="detcloud-abroad")
    assert done.returncode == 1
    assert "has a cluster detcloud-abroad of its own" in done.stderr
    assert not [name for name in carried_out if name.startswith(("create", "put", "update"))]


def test_launcher_role_may_only_launch_in_the_given_network() -> None:
    network = Network({f"{REGION}a": "subnet-1a"}, "sg-5")
    document = policies.launcher(NAMES, network)
    own = policies.tick(NAMES, network)["Statement"]
    assert all(statement in own for statement in document["Statement"])
    services = {
        action.partition(":")[0] for item in document["Statement"] for action in item["Action"]
    }
    assert services == {"ec2", "iam", "pricing", "ssm"}
    subnet = f"arn:aws:ec2:{REGION}:{ACCOUNT}:subnet/"
    assert allows(document, "ec2:RunInstances", f"{subnet}subnet-1a")
    assert not allows(document, "ec2:RunInstances", f"{subnet}subnet-2")
    assert not allows(document, "s3:GetObject", "arn:aws:s3:::any/thing")
    assert allows(
        document,
        "iam:PassRole",
        NAMES.role_arn("instance"),
        {"iam:PassedToService": "ec2.amazonaws.com"},
    )


class StrangerAws:
    """AWS for a caller without credentials or with credentials of a foreign account."""

    def __init__(self, account: str = "") -> None:
        self.account = account

    def __call__(self, service: str) -> Any:
        return self

    def get_caller_identity(self) -> dict[str, str]:
        if not self.account:
            raise NoCredentialsError
        return {"Account": self.account}

    def __getattr__(self, name: str) -> Any:
        def refuse(*_: Any, **request: Any) -> Any:
            raise ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, name)

        return refuse


def test_missing_aws_credentials_are_a_warning_but_stop_a_drain() -> None:
    for account, why in (
        ("", "Unable to locate credentials"),
        ("999999999999", "belong to the account 9"),
    ):
        [finding] = remote(StrangerAws(account)).find_findings(pools())
        assert (finding.level, finding.subject) == (Level.WARNING, f"credentials in {ACCOUNT}")
        assert finding.text.startswith("neither the remote account nor its pools were checked: ")
        assert why in finding.text
        assert "AWS_PROFILE, and repeat `detcloud deploy check gcp" in finding.remedy
        [leftover] = remote(StrangerAws(account)).find_leftovers()
        assert leftover.startswith(f"unknown resources in the account {ACCOUNT}: ")
        assert why in leftover
    with pytest.raises(DrainFailed, match=f"instances in the account {ACCOUNT} may be left"):
        remote(StrangerAws(ACCOUNT)).drain(lambda line: None)


@pytest.mark.parametrize(
    "value",
    [
        {},
        "no map",
        description(account=123456789012),
        description(region="cn-north-1"),
        description(subnets={}),
        description(subnets={"us-east-1a": "my-subnet"}),
        description(access_key="AKIA"),
    ],
)
def test_refuses_wrong_aws_accounts(value: object) -> None:
    with pytest.raises(SettingsInvalid, match=r"detcloud:otherClouds: aws is .*: expected .*12 DI"):
        parse_settings("vision", {**LEAST, "otherClouds": json.dumps({"aws": value})})


def test_refuses_the_stacks_own_cloud_and_unknown_clouds() -> None:
    for given in ('{"gcp": {}}', '{"moon": {}}'):
        with pytest.raises(SettingsInvalid, match="expected a map from aws to the description"):
            parse_settings("vision", {**LEAST, "otherClouds": given})


def test_remote_pools_are_checked_like_pools_of_an_aws_stack() -> None:
    given = {"otherClouds": json.dumps({"aws": description()})}
    settings = parse_settings("vision", {**LEAST, **given})
    assert find_pool_problems(settings, pools()) == []
    [problem] = find_pool_problems(settings, pools("{type: aws, region: eu-west-1}"))
    assert problem.startswith(
        "pools.yaml: pool default: provider.region is eu-west-1: expected us-"
    )
    alone = parse_settings("vision", LEAST)
    [problem] = find_pool_problems(alone, pools())
    assert "provider.type is aws: expected gcp; detcloud:otherClouds says" in problem


def test_only_api_tick_and_wake_know_the_aws_account(tmp_path: Path) -> None:
    config = {**VISION, "detcloud:otherClouds": json.dumps({"aws": description()})}
    environments_by_name = environments(gcp_graph("vision", config, tmp_path))
    accounts = {
        name: json.loads(variables[VARIABLE])["aws"]
        for name, variables in environments_by_name.items()
        if VARIABLE in variables
    }
    assert set(accounts) == {"api", "tick", "wake"}
    names = Names("vision", ACCOUNT, REGION)
    assert accounts["tick"]["launcher"] == names.role_arn("launcher")
    assert accounts["api"]["instance"] == names.role_arn("instance")


def test_token_audience_names_the_cluster() -> None:
    assert federation_audience("detcloud-vision") == "detcloud-aws:detcloud-vision"
