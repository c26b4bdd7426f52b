"""A cluster on AWS with a pool on AWS and a pool on Google Cloud.

A job runs in its preferred cloud, and in the other cloud if the first has no capacity. Machines of
both clouds are processes that boot from the scripts of their launches. No part has a Google key:
the token service verifies AWS signatures with the emulator, and Compute Engine accepts only the
resulting tokens. A machine proves its identity to get the agent's code from the cluster's bucket.
The cluster checks Google's signatures.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from control_plane.agents.agent_code import agent_code
from infra.gcp.names import Names
from infra.gcp.trust_policies import Trust
from infra.remote_accounts import Launcher
from tests.conftest import require
from tests.emulators.deployment import Account, Deployment, running, stack
from tests.emulators.ministack import ACCOUNT
from tests.end_to_end.cluster_steps import (
    SHORT,
    check_ticks,
    checkpoints,
    create,
    wait_until,
)
from tests.end_to_end.laptop import Laptop
from tests.end_to_end.two_clouds import GCE_TYPE, ON_AWS, ON_GCP, both_pools, wait_for_job

for package in ("cryptography", "google.auth"):
    require(package)

import urllib3  # noqa: E402
from google.auth.exceptions import GoogleAuthError  # noqa: E402
from google.auth.transport.urllib3 import Request  # noqa: E402

from provisioner.clouds.gcp.federation import federated_credentials  # noqa: E402
from tests.emulators.google_remote import SimulatedRemote, google_remote  # noqa: E402

# As dear as a deployment and two jobs.
pytestmark = pytest.mark.nightly

TEAM, REGION = "duo", "us-central1"
PREFERRED = f"[{ON_GCP}, {ON_AWS}]"
SIDE = {"project": "tests-1", "projectNumber": "123456789012", "region": REGION}


@dataclass
class Duo:
    """A cluster with a remote account on Google Cloud."""

    cluster: Deployment
    remote: SimulatedRemote

    def machines_on_aws(self) -> set[str]:
        """Return all machines of EC2 that the cluster ever launched."""
        region = self.cluster.account.ec2.region
        return {
            machine.id
            for machine in region.machines.values()
            if machine.tags.get("detcloud-pool") == ON_AWS
        }


@pytest.fixture(scope="module")
def duo(company: Account, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Duo]:
    names = Names(TEAM, SIDE["project"], SIDE["projectNumber"], REGION)
    trust = Trust(names, Launcher("aws", ACCOUNT, TEAM, f"detcloud-{TEAM}-tick"))
    settings = {"detcloud:otherClouds": json.dumps({"gcp": SIDE})}
    with google_remote(tmp_path_factory.mktemp("gce"), company.aws, trust) as remote:
        made = stack(company, TEAM, both_pools(ON_AWS), settings, remote.environment)
        with running(made) as cluster:
            wait_until(lambda: ("pools", ON_GCP) in cluster.rows(), 60, "the configuration")
            yield Duo(cluster, remote)


@pytest.fixture
def owner(duo: Duo, tmp_path: Path) -> Laptop:
    """Return the home of a user with the token of this cluster's administrator."""
    variables = {"DETCLOUD_URL": duo.cluster.url, "DETCLOUD_TOKEN": duo.cluster.token}
    return Laptop(tmp_path / "home", **variables)


def test_job_that_prefers_the_remote_cloud_runs_remotely_and_leaves_an_empty_pool(
    duo: Duo, owner: Laptop, tmp_path: Path
) -> None:
    project = duo.remote.project
    trial = wait_for_job(
        duo.cluster, duo.remote.machines, owner, create(owner, SHORT, tmp_path, PREFERRED)
    )
    assert trial["best_metric"] > 0.8
    assert (trial["restarts"], trial["losses"]) == (0, 0)
    [machine] = project.machines.values()
    assert machine.name.startswith(f"detcloud-{TEAM}--vm-")
    assert duo.machines_on_aws() == set()
    # The checkpoints are in the cluster's bucket, written with the cluster's keys.
    assert checkpoints(duo.cluster, trial["id"])
    assert "validation at batch" in owner.run("trial", "logs", trial["id"]).stdout
    # The script names no bucket, and the cluster stores no Google key. At least two token exchanges
    # happened for each launching function, and the machine requested no token.
    script = machine.metadata["startup-script"]
    assert "code_place=''" in script
    assert agent_code().sha256 in script
    assert {"exchange", "account"} == set(duo.remote.tokens.given)
    assert duo.remote.machines.metadata[machine.name].access_tokens == []
    wait_until(lambda: not project.billed_machines(), 60, "an empty pool")
    check_ticks(duo.cluster)


def test_job_runs_at_home_if_the_remote_cloud_has_no_capacity(
    duo: Duo, owner: Laptop, tmp_path: Path
) -> None:
    project = duo.remote.project
    before = set(project.machines)
    for zone in project.zones[REGION]:
        project.capacity[GCE_TYPE, zone, "spot"] = 0
    trial = wait_for_job(
        duo.cluster, duo.remote.machines, owner, create(owner, SHORT, tmp_path, PREFERRED)
    )
    assert trial["best_metric"] > 0.8
    assert set(project.machines) == before
    assert len(duo.machines_on_aws()) == 1
    # The prices of both clouds are in the same list.
    pools = {item["name"]: item for item in owner.json("resource-pool", "list")}
    prices = {name: pools[name]["offerings"][0]["price_per_hour"] for name in (ON_AWS, ON_GCP)}
    assert all(price > 0 for price in prices.values()), prices
    wait_until(lambda: not duo.cluster.billed_instances(), 60, "an empty pool")


def test_google_accepts_only_the_tick_function(duo: Duo, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in duo.remote.environment.items():
        monkeypatch.setenv(name, value)
    sts, tokens = duo.cluster.aws.client("sts"), duo.remote.tokens

    def headers_of(function: str) -> dict[str, str]:
        role = f"arn:aws:iam::{ACCOUNT}:role/{duo.cluster.function_name(function)}"
        keys = sts.assume_role(RoleArn=role, RoleSessionName=function)["Credentials"]
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", keys["AccessKeyId"])
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", keys["SecretAccessKey"])
        monkeypatch.setenv("AWS_SESSION_TOKEN", keys["SessionToken"])
        headers: dict[str, str] = {}
        request = Request(urllib3.PoolManager(retries=False))
        made = federated_credentials(tokens.provider, tokens.account)
        made.before_request(request, "GET", "https://compute.googleapis.com/", headers)
        return headers

    assert tokens.holds(headers_of("tick")["authorization"])
    with pytest.raises(GoogleAuthError, match="not trusted"):
        headers_of("api")
