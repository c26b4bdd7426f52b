"""The scripts for remote accounts of a cluster on own machines, which trust a named principal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import require

for package in ("botocore", "boto3", "pulumi_gcp"):
    require(package)

from botocore.exceptions import ClientError  # noqa: E402

from control_plane.config.pools import check_cluster  # noqa: E402
from control_plane.config.server_clouds import check_server_clouds  # noqa: E402
from infra.remote_accounts import RemoteAccount  # noqa: E402
from infra.server_trust import main, open_accounts  # noqa: E402
from tests.emulators.aws_command import run_aws_script  # noqa: E402
from tests.emulators.ministack import ACCOUNT, Ministack  # noqa: E402
from tests.unit.config.test_config_server_clouds import AWS, GCP, LAB  # noqa: E402
from tests.unit.infra.gcloud_stub import Gcloud, bindings_of  # noqa: E402

# Another name than in other tests of the shared account.
NAME, CLUSTER_ID = "workshop", "5f0c2a1e-8f6b-4a52-9d0a-2f6d1c9b7e11"
LAUNCHER = f"arn:aws:iam::{ACCOUNT}:role/detcloud-{NAME}-launcher"
POOLS = check_cluster("resource_pools: [{pool_name: default}]")
OWNER = "serviceAccount:lab@acme-ml.iam.gserviceaccount.com"


def account(cluster_id: str = CLUSTER_ID, **clouds: Any) -> RemoteAccount:
    """Return the only remote account of a file."""
    given = {"name": NAME, "url": "https://lab.example.org", **clouds}
    [found] = open_accounts(check_server_clouds(json.dumps(given)), cluster_id)
    return found


def on_aws(user: str | None, cluster_id: str = CLUSTER_ID) -> RemoteAccount:
    principal = None if user is None else f"arn:aws:iam::{ACCOUNT}:user/{user}"
    return account(cluster_id, aws={**AWS, "account": ACCOUNT, "principal": principal})


@pytest.fixture
def users(strict_aws: Ministack) -> dict[str, Any]:
    """Return clients of the token service for two IAM users, who may assume trusting roles."""
    iam = strict_aws.client("iam")
    statement = {"Effect": "Allow", "Action": "sts:AssumeRole", "Resource": "*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    clients = {}
    for name in ("workshop-server", "stranger"):
        iam.create_user(UserName=name)
        iam.put_user_policy(UserName=name, PolicyName="assume", PolicyDocument=policy)
        key = iam.create_access_key(UserName=name)["AccessKey"]
        user = Ministack(strict_aws.url, key["AccessKeyId"], key["SecretAccessKey"])
        clients[name] = user.client("sts")
    return clients


def test_only_the_named_user_may_launch(
    strict_aws: Ministack, users: dict[str, Any], tmp_path: Path
) -> None:
    made = on_aws("workshop-server")
    for expected in (["create-role"] * 2, []):
        done, carried_out = run_aws_script(tmp_path, strict_aws.client, made.commands(POOLS))
        assert done.returncode == 0, done.stderr
        assert [name for name in carried_out if name == "create-role"] == expected
    keys = users["workshop-server"].assume_role(RoleArn=LAUNCHER, RoleSessionName="lab")
    assert keys["Credentials"]["SessionToken"]
    with pytest.raises(ClientError, match="AccessDenied"):
        users["stranger"].assume_role(RoleArn=LAUNCHER, RoleSessionName="lab")
    # The role may launch and end only instances with the id of this cluster.
    policy = json.dumps(
        strict_aws.client("iam").get_role_policy(
            RoleName=f"detcloud-{NAME}-launcher", PolicyName=f"detcloud-{NAME}-launcher"
        )["PolicyDocument"]
    )
    assert policy.count(f'"ec2:ResourceTag/detcloud-cluster": "{CLUSTER_ID}"') >= 2
    # Another cluster of this name changes nothing.
    other = on_aws("stranger", "another-cluster")
    for script in (other.commands(POOLS), other.removal_commands()):
        done, carried_out = run_aws_script(tmp_path, strict_aws.client, script)
        assert done.returncode == 1
        assert "another name for the cluster" in done.stderr
        assert not [name for name in carried_out if name.startswith(("create", "delete", "put"))]
    done, _ = run_aws_script(tmp_path, strict_aws.client, made.removal_commands())
    assert done.returncode == 0, done.stderr
    with pytest.raises(ClientError, match="NoSuchEntity"):
        strict_aws.client("iam").get_role(RoleName=LAUNCHER.rpartition("/")[2])


def test_account_without_a_principal_gets_no_launcher(
    strict_aws: Ministack, tmp_path: Path
) -> None:
    made = on_aws(None)
    done, carried_out = run_aws_script(tmp_path, strict_aws.client, made.commands(POOLS))
    assert done.returncode == 0, done.stderr
    assert carried_out.count("create-role") == 1
    roles = [role["RoleName"] for role in strict_aws.client("iam").list_roles()["Roles"]]
    assert f"detcloud-{NAME}-instance" in roles
    assert f"detcloud-{NAME}-launcher" not in roles
    done, _ = run_aws_script(tmp_path, strict_aws.client, made.removal_commands())
    assert done.returncode == 0, done.stderr


@pytest.fixture
def gcloud(tmp_path: Path) -> Gcloud:
    folder = tmp_path / "gcloud"
    folder.mkdir()
    return Gcloud(folder)


def test_google_project_trusts_only_the_named_account(gcloud: Gcloud) -> None:
    made = account(gcp={**GCP, "principal": OWNER})
    done = gcloud.run(made.commands(POOLS))
    assert done.returncode == 0, done.stderr
    launcher = f"dc-{NAME}-launch@acme-ml.iam.gserviceaccount.com"
    given = {(place, member) for place, member, _, _ in bindings_of(gcloud.commands)}
    assert (launcher, OWNER) in given
    assert {member for _, member in given} == {OWNER, f"serviceAccount:{launcher}"}
    # No identity of another cloud is trusted.
    assert not [words for words in gcloud.commands if "workload-identity-pools" in words]
    again = gcloud.run(made.commands(POOLS))
    assert again.returncode == 0, again.stderr
    assert not [words for words in gcloud.commands if "create" in words]
    refused = gcloud.run(account("another-cluster", gcp=GCP).commands(POOLS))
    assert (refused.returncode, gcloud.commands) == (1, [])
    assert "belongs to another cluster" in refused.stderr
    removed = gcloud.run(made.removal_commands())
    assert removed.returncode == 0, removed.stderr
    assert len([words for words in gcloud.commands if "delete" in words]) == 4 + 2 + 3


def test_google_project_without_a_principal_gets_no_launcher(gcloud: Gcloud) -> None:
    done = gcloud.run(account(gcp=GCP).commands(POOLS))
    assert done.returncode == 0, done.stderr
    assert bindings_of(gcloud.commands) == []
    accounts = [
        words[3] for words in gcloud.commands if words[1:3] == ["service-accounts", "create"]
    ]
    assert accounts == [f"dc-{NAME}-vm"]


def test_command_prints_all_scripts_or_the_problems(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "clouds.yaml"
    path.write_text(json.dumps({**LAB, "gcp": GCP}))
    words = [f"--clouds={path}", f"--cluster-id={CLUSTER_ID}"]
    assert main(words) == 0
    commands = json.loads(capsys.readouterr().out)["commands"]
    assert commands.count("#!/bin/bash") == 2
    assert main([*words, "--remove"]) == 0
    assert "# Removes what" in json.loads(capsys.readouterr().out)["commands"]
    path.write_text("name: Lab")
    assert main(words) == 1
    assert "clouds.yaml:1: name: must be" in json.loads(capsys.readouterr().out)["error"]
