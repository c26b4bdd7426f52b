"""Two teams in an account never see each other's data or instances.

The account's IAM is enforced (see test_aws.py), except for EC2. Unit tests of tests/unit/infra read
the policy that a tick ends only instances with its own cluster's tag; this module checks that a
tick never tries.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from control_plane.fleet.notices import NOTICES
from control_plane.fleet.records import instances_partition
from detcloud.agent.join_token import IdentityRefused
from provisioner.clouds.provider import INTENT_TAG
from tests.emulators.deployment import Account, Deployment, Stack, stack
from tests.emulators.ec2.machine import Machine
from tests.emulators.ministack import ACCOUNT, REGION
from tests.emulators.minutes import TICK_SECONDS
from tests.end_to_end.aws.cluster import prove, send_warning
from tests.end_to_end.cluster_steps import POOL, status_of, wait_until

# A pool with an instance even without work.
SPEECH = f"""
resource_manager: {{default_compute_resource_pool: {POOL}, default_aux_resource_pool: {POOL}}}
resource_pools:
  - pool_name: {POOL}
    provider:
      type: aws
      cpu_slots_allowed: true
      min_instances: 1
      offerings: [{{instance_type: g5.xlarge, zone: us-east-1a, market: spot, slots: 1}}]
"""
OLD_MS = 600_000


@pytest.fixture(scope="module")
def speech(company: Account) -> Stack:
    """Return the second team's stack; ticks run only on request."""
    made = stack(company, "speech", SPEECH)
    made.invoke("tick", {})
    return made


@pytest.mark.nightly
def test_tokens_and_instances_of_a_team_are_refused_by_the_second_teams_api(
    deployment: Deployment,
    speech: Stack,
    instance: Machine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for own, other in ((deployment, speech), (speech, deployment)):
        with own.client() as admin:
            colleague = admin.create_token("ada").data["token"]
        for token in (own.token, colleague):
            with own.client(token) as at_home, other.client(token) as abroad:
                assert status_of(at_home.whoami) == 200
                assert status_of(abroad.whoami) == 401
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", deployment.aws.url)
    with pytest.raises(IdentityRefused, match="not from an instance of this cluster"):
        prove(speech, instance, tmp_path / "join.token")


@pytest.mark.parametrize("function", ["api", "advance", "tick", "checkpoint_gc"])
def test_functions_of_a_team_cannot_read_data_of_the_second_team(
    function: str, deployment: Deployment, speech: Stack
) -> None:
    sts = speech.aws.client("sts")
    role = f"arn:aws:iam::{ACCOUNT}:role/{speech.function_name(function)}"
    keys = sts.assume_role(RoleArn=role, RoleSessionName=function)["Credentials"]
    session = boto3.Session(
        keys["AccessKeyId"], keys["SecretAccessKey"], keys["SessionToken"], region_name=REGION
    )
    table = session.client("dynamodb", endpoint_url=speech.aws.url)
    bucket = session.client("s3", endpoint_url=speech.aws.url)
    row = {"p": {"S": "pools"}, "s": {"S": POOL}}
    for team in (speech, deployment):
        may = team is speech
        outputs = team.outputs
        config = {"Bucket": outputs["objects"], "Key": "config/cluster.yaml"}
        assert is_allowed(table.get_item, TableName=outputs["table"], Key=row) is may
        assert is_allowed(bucket.get_object, **config) is (may and function != "advance")
    table.close()
    bucket.close()


def test_function_with_the_second_teams_table_is_refused(
    deployment: Deployment, speech: Stack
) -> None:
    client, name = speech.aws.client("lambda"), speech.function_name("checkpoint_gc")
    variables = client.get_function_configuration(FunctionName=name)["Environment"]["Variables"]
    speech.invoke("checkpoint_gc", {})
    sent = {**variables, "DETCLOUD_TABLE": deployment.outputs["table"]}
    client.update_function_configuration(FunctionName=name, Environment={"Variables": sent})
    with pytest.raises(AssertionError, match="failed"):
        speech.invoke("checkpoint_gc", {})
    assert any("AccessDenied" in line for line in speech.log_messages("checkpoint_gc"))


@pytest.mark.nightly
def test_team_ends_unclaimed_instances_of_the_team_only(
    deployment: Deployment, speech: Stack, instance: Machine
) -> None:
    region = deployment.account.ec2.region
    region.sleepers = 1
    speech.invoke("tick", {})
    (own,) = speech.billed_instances()
    # An old unclaimed launch of each team; the claimed instances are equally old.
    strays = {team.team: stray(team, of) for team, of in ((deployment, instance), (speech, own))}
    for machine in (instance, own):
        machine.launched_ms -= OLD_MS
    wait_until(
        lambda: strays["vision"] not in region.billed_machines(), 5 * TICK_SECONDS + 20, "a sweep"
    )
    assert {billed_machine.id for billed_machine in region.billed_machines()} == {
        instance.id,
        own.id,
        strays["speech"].id,
    }
    speech.invoke("tick", {})
    assert {billed_machine.id for billed_machine in region.billed_machines()} == {
        instance.id,
        own.id,
    }
    region.interrupt(own.id, notice_ms=0)


@pytest.mark.nightly
def test_warning_about_a_teams_instance_leaves_no_row_at_the_second_team(
    deployment: Deployment, speech: Stack, instance: Machine
) -> None:
    row = (instances_partition(POOL), instance.id)
    wait_until(lambda: row in deployment.rows(), 30, "the instance in its cluster's books")
    for team in (speech, deployment):
        send_warning(team, "EC2 Instance Rebalance Recommendation", instance)
    row_key = (NOTICES, f"{instance.id}#rebalance")
    assert [row_key in team.rows() for team in (speech, deployment)] == [False, True]
    assert not any(instance.id in line for line in speech.log_messages("spot_notice"))


def stray(team: Stack, like: Machine) -> Machine:
    """Add an instance like a team's own, from a launch without a row in the team's table."""
    region = team.account.ec2.region
    tags = {**like.tags, INTENT_TAG: "nobodys"}
    name = f"i-{region.number():017x}"
    launched_ms = like.launched_ms - OLD_MS
    made = replace(like, id=name, tags=tags, launched_ms=launched_ms, heard=set())
    with region.lock:
        region.machines[name] = made
    return made


def is_allowed(call: Callable[..., Any], **request: Any) -> bool:
    """Return whether the call is allowed.

    Raises ClientError for other failures.
    """
    try:
        call(**request)
    except ClientError as error:
        if error.response["Error"]["Code"] not in ("AccessDenied", "AccessDeniedException"):
            raise
        return False
    return True
