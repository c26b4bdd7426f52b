"""Steps of a cluster on AWS, in addition to the common steps of all clouds."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from control_plane.fleet.records import instances_partition
from detcloud.agent.aws.instance_identity import sign_identity
from detcloud.agent.aws.metadata import Ec2Metadata
from detcloud.agent.identity_proof import IdentityProof
from detcloud.agent.join_token import obtain_join_token
from tests.emulators.deployment import Deployment, Stack
from tests.emulators.ec2.machine import Machine
from tests.end_to_end.cluster_steps import POOL, pools_text, ticks_stopped, wait_until
from tests.end_to_end.instance_tokens import Overheard

_OFFERINGS = """[
        {instance_type: g5.xlarge, zone: us-east-1a, market: spot, slots: 1},
        {instance_type: g5.xlarge, zone: us-east-1b, market: spot, slots: 1}]"""
POOLS = pools_text("aws", _OFFERINGS)


def end(team: Stack, machine: Machine) -> None:
    """Interrupt a machine of the first pool, and wait until the cluster notices."""
    team.account.ec2.region.interrupt(machine.id, notice_ms=0)
    row = (instances_partition(POOL), machine.id)
    wait_until(lambda: row not in team.rows(), 30, f"the end of {machine.id}")


def send_warning(team: Stack, kind: str, machine: Machine, action: str = "") -> None:
    """Deliver EC2's warning for a machine to the cluster, independently of the machine's metadata.

    Only AWS may send these events, so the rule's pattern is tested and the rule's target called.
    """
    event = {
        "id": "1",
        "source": "aws.ec2",
        "account": "123456789012",
        "region": "us-east-1",
        "resources": [],
        "detail-type": kind,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "detail": {"instance-id": machine.id, **({"instance-action": action} if action else {})},
    }
    events, rule = team.aws.client("events"), f"detcloud-{team.team}-warnings"
    pattern = events.describe_rule(Name=rule)["EventPattern"]
    assert events.test_event_pattern(EventPattern=pattern, Event=json.dumps(event))["Result"]
    [target] = events.list_targets_by_rule(Rule=rule)["Targets"]
    assert target["Arn"].endswith(f":{team.function_name('spot_notice')}:live")
    team.invoke("spot_notice", event)


def prove(to: Stack, machine: Machine, kept: Path) -> str:
    """Return the join token, after proving the machine's identity with the keys in the metadata.

    The token is stored in `kept`. Raises IdentityRefused.
    """
    metadata = Ec2Metadata(to.account.ec2.metadata_url(machine.id))

    def make_proof(digest: str) -> IdentityProof:
        return sign_identity(to.outputs["cluster"], digest, metadata)

    return obtain_join_token(kept, to.url, POOL, make_proof, lambda line: None, connect=Overheard)


@contextmanager
def minutes_stopped(deployed: Deployment) -> Iterator[None]:
    """Stop all periodic ticks: ours and the emulator's rule."""
    events, rule = deployed.aws.client("events"), f"detcloud-{deployed.team}-minute"
    events.disable_rule(Name=rule)
    try:
        with ticks_stopped(deployed):
            yield
    finally:
        events.enable_rule(Name=rule)


def allow_on_cluster(deployment: Deployment, cluster: str) -> None:
    """Let the API's role use the ECS cluster.

    AWS checks RunTask against the task definition, and the other calls against the task. The
    emulator checks all of them against the cluster.
    """
    calls = ["ecs:RunTask", "ecs:DescribeTasks", "ecs:StopTask"]
    statement = {
        "Effect": "Allow",
        "Action": calls,
        "Resource": f"arn:aws:ecs:*:*:cluster/{cluster}",
    }
    document = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    role = deployment.function_name("api")
    deployment.aws.client("iam").put_role_policy(
        RoleName=role, PolicyName="relay-of-the-emulator", PolicyDocument=document
    )
