"""A cluster on Google Cloud with a second pool on AWS, where a job is interrupted and ends.

The cluster has no AWS key. The remote account is created by its script. The tick shows a token that
Google signed, and the role's trust policy decides. EC2 accepts only sessions of this role. An
instance proves its identity to get the agent's code. Checkpoints stay in the cluster's bucket.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import require, require_installed

for package in ("pulumi_gcp", "cryptography", "google.auth", "boto3", "moto"):
    require(package)

from control_plane.agents.agent_code import agent_code  # noqa: E402
from control_plane.config.pools import check_cluster  # noqa: E402
from infra.aws.remote_account import AwsRemoteAccount, AwsRemoteSettings  # noqa: E402
from infra.gcp.names import Names  # noqa: E402
from infra.remote_accounts import Launcher, parse_remote_settings  # noqa: E402
from tests.emulators.aws_remote import (  # noqa: E402
    ACTION,
    SimulatedAwsRemote,
    aws_remote,
    make_remote_network,
    run_trust_script,
)
from tests.emulators.deployment_gcp import (  # noqa: E402
    PROJECT,
    PROJECT_NUMBER,
    REGION,
    GcpDeployment,
    deployment,
    running,
)
from tests.emulators.fake_gcs import FakeGcs  # noqa: E402
from tests.emulators.firestore import Firestore  # noqa: E402
from tests.emulators.gce.metadata import MachineMetadata  # noqa: E402
from tests.emulators.ministack import ACCOUNT, Ministack  # noqa: E402
from tests.emulators.ministack import REGION as AWS_REGION  # noqa: E402
from tests.end_to_end.cluster_steps import (  # noqa: E402
    KEEP_ALL,
    check_replacement,
    check_ticks,
    checkpoints,
    first_checkpoint,
    ticks_stopped,
    wait_until,
)
from tests.end_to_end.gcp.cluster import create  # noqa: E402
from tests.end_to_end.gcp.conftest import FUNCTIONS  # noqa: E402
from tests.end_to_end.laptop import Laptop  # noqa: E402
from tests.end_to_end.two_clouds import ON_AWS, ON_GCP, both_pools, wait_for_job  # noqa: E402
from tests.patience import ANSWER_SECONDS_MAX  # noqa: E402

# As dear as a deployment and a job.
pytestmark = pytest.mark.nightly

TEAM = "abroad"
PREFERRED = f"[{ON_AWS}, {ON_GCP}]"
POOLS = both_pools(ON_GCP)


@dataclass
class Pair:
    """A cluster and a remote account on AWS, in the cluster's settings and in EC2."""

    cluster: GcpDeployment
    described: AwsRemoteSettings
    launcher: Launcher
    remote: SimulatedAwsRemote

    @property
    def plan(self) -> AwsRemoteAccount:
        """Return the remote account from the view of the deployer's command."""
        return AwsRemoteAccount(self.described, self.launcher, self.remote.clients)


@pytest.fixture(scope="module")
def pair(
    firestore: Firestore,
    gcs_server: FakeGcs,
    strict_aws: Ministack,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Pair]:
    for package in ("torch", "sklearn"):
        require_installed(package)
    folder, aws = tmp_path_factory.mktemp("pair"), strict_aws
    tick = Names(TEAM, PROJECT, PROJECT_NUMBER, REGION).email("tick")
    described = {
        "account": ACCOUNT,
        "region": AWS_REGION,
        **make_remote_network(aws, f"{TEAM}-machines"),
    }
    launcher = Launcher("gcp", PROJECT, TEAM, tick)
    settings = parse_remote_settings(AwsRemoteSettings, described, "a remote account")
    plan = AwsRemoteAccount(settings, launcher, aws.client)
    subject = MachineMetadata.subject
    run_trust_script(folder / "aws", aws.client, plan.commands(check_cluster(POOLS)), subject)
    others = {"detcloud:otherClouds": json.dumps({"aws": described})}
    with aws_remote(folder / "ec2", aws, plan, tick) as remote:
        made_of = (firestore, gcs_server, folder, TEAM, POOLS, FUNCTIONS)
        with (
            deployment(*made_of, settings=others, environment=remote.environment) as made,
            running(made),
        ):
            wait_until(lambda: bool(made.table.query("pools", " ", "~").rows), 60, "the pools")
            yield Pair(made, settings, launcher, remote)


@pytest.fixture
def owner(pair: Pair, tmp_path: Path) -> Laptop:
    """Return the home of a user with the token of this cluster's administrator."""
    variables = {"DETCLOUD_URL": pair.cluster.url, "DETCLOUD_TOKEN": pair.cluster.token}
    return Laptop(tmp_path / "home", **variables)


def test_job_on_an_interrupted_aws_instance_resumes_on_a_second_instance(
    pair: Pair, owner: Laptop, tmp_path: Path
) -> None:
    cluster, region = pair.cluster, pair.remote.region
    # Three epochs of 7 s each: the notice arrives in the middle of an epoch.
    settings = (KEEP_ALL,)
    experiment = create(cluster, owner, 3, tmp_path, PREFERRED, 0.3, settings)
    wait_until(lambda: bool(pair.remote.billed_machines()), 60, "an instance")
    [machine] = pair.remote.billed_machines()
    trial = first_checkpoint(cluster, experiment)
    region.interrupt(machine.id)
    wait_until(lambda: len(region.machines) > 1, 60, "a replacement")
    assert machine.is_billed(region.clock()), "the replacement comes before the end"
    described = wait_for_job(cluster, pair.remote.machines, owner, experiment)
    check_replacement(cluster, trial, described)
    assert described["best_metric"] > 0.8
    # All checkpoints and the log are in the cluster's own bucket.
    assert checkpoints(cluster, trial)
    assert "validation at batch" in owner.run("trial", "logs", trial).stdout
    # No instance ran in the cluster's own cloud, and the scripts in the remote cloud name no
    # bucket.
    assert cluster.project.machines == {}
    for item in region.machines.values():
        script = item.script.decode()
        assert "code_place=''" in script
        assert agent_code().sha256 in script
    assert set(pair.remote.tokens.given) == {"role"}
    wait_until(lambda: not pair.remote.billed_machines(), 60, "an empty pool")
    check_ticks(cluster)


def assume(pair: Pair, claims: dict[str, Any]) -> int:
    """Request a session of the launcher role with a Google token with these claims.

    Return the status of the answer.
    """
    parameters = {
        "Action": ACTION.partition(":")[2],
        "RoleArn": pair.plan.variables()["launcher"],
        "RoleSessionName": "somebody",
        "WebIdentityToken": pair.remote.keys.sign(claims),
    }
    content = urllib.parse.urlencode(parameters).encode()
    try:
        with urllib.request.urlopen(
            f"{pair.remote.tokens.url}/", content, timeout=ANSWER_SECONDS_MAX
        ) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_aws_accepts_only_the_tick_of_the_cluster(pair: Pair) -> None:
    tick, audience = pair.remote.metadata, f"detcloud-aws:detcloud-{TEAM}"
    assert assume(pair, tick.claims(audience)) == 200
    assert assume(pair, tick.claims("detcloud-aws:detcloud-vision")) == 403
    assert assume(pair, replace(tick, subject="1" * 21).claims(audience)) == 403


def test_drain_and_removal_script_leave_no_resource_in_the_remote_account(
    pair: Pair, tmp_path: Path
) -> None:
    region, messages = pair.remote.region, list[str]()
    with ticks_stopped(pair.cluster):
        templates, left = len(region.templates), pair.plan.find_leftovers()
        assert templates > 0
        assert sum(name.startswith("the launch template ") for name in left) == templates
        drained = pair.plan.drain(messages.append)
        assert (drained.instances, drained.templates) == (0, templates)
        assert (region.templates, region.billed_machines()) == ({}, [])
        assert [leftover.split(" in ")[0] for leftover in pair.plan.find_leftovers()] == [
            f"the role detcloud-{TEAM}-launcher",
            f"the role detcloud-{TEAM}-instance",
            f"the instance profile detcloud-{TEAM}-instance",
        ]
        run_trust_script(tmp_path, pair.remote.clients, pair.plan.removal_commands())
        assert pair.plan.find_leftovers() == []
        # The launcher role is gone, so that a valid token is refused too.
        audience = f"detcloud-aws:detcloud-{TEAM}"
        assert assume(pair, pair.remote.metadata.claims(audience)) == 403
