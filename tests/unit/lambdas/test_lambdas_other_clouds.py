"""Functions with pools in a remote cloud: provider types, proofs, launches and imports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from control_plane.fleet.records import IntentRow, Market, Offering
from lambdas.other_clouds import VARIABLE, HostParts, OtherClouds
from provisioner.clouds.provider import CloudError, ConfigurationError
from provisioner.model import ProvisionerSettings
from tests.conftest import require
from tests.emulators.gce.metadata import MachineMetadata
from tests.emulators.gce.project import Project
from tests.emulators.gce.serving import gce_server
from tests.emulators.google_keys import GoogleKeys, certificate_server
from tests.patience import PROCESS_SECONDS_MAX

CLUSTER = "detcloud-vision"
OTHER_CLOUD = {
    "project": "tests-1",
    "region": "us-central1",
    "provider": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p",
    "launcher": "dc-vision-launch@tests-1.iam.gserviceaccount.com",
    "instance": "dc-vision-poolvm@tests-1.iam.gserviceaccount.com",
    "network": {"network": "n", "subnetworks": {"us-central1": "s"}, "name_prefix": "vision--vm"},
}
OTHER_CLOUDS = json.dumps({"gcp": OTHER_CLOUD})


@pytest.fixture
def function_of_aws(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The environment of a function on AWS, with a remote account on Google Cloud."""
    require("botocore")
    require("google.auth")
    environment = {
        "AWS_REGION": "us-east-1",
        "DETCLOUD_CLUSTER": CLUSTER,
        "DETCLOUD_API_URL": "https://api.example",
        "DETCLOUD_INSTANCE_ROLE": "arn:aws:iam::111111111111:role/detcloud-vision-instance",
        VARIABLE: OTHER_CLOUDS,
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


def adapters() -> Any:
    from lambdas.aws.adapters import AwsAdapters

    return AwsAdapters()


def test_provider_types_follow_the_remote_accounts(
    function_of_aws: pytest.MonkeyPatch,
) -> None:
    assert adapters().provider_types == {"aws", "gcp"}
    function_of_aws.delenv(VARIABLE)
    alone = adapters()
    assert alone.provider_types == {"aws"}
    assert alone.find_verifier("gcp") is None
    remedy = (
        r"no provider gcp; it has aws; pools of another cloud need its remote account .* in "
        r"another cloud"
    )
    with pytest.raises(ConfigurationError, match=remedy):
        alone.cloud_provider(ProvisionerSettings("gcp"))


def test_unknown_cloud_is_ignored() -> None:
    def no_parts() -> HostParts:
        raise AssertionError("nothing is to be opened")

    clouds = OtherClouds(json.dumps({"local": {}, "..gcp": {}}), no_parts)
    assert clouds.types == frozenset()
    assert clouds.find_cloud("local") is None


def test_each_cloud_has_a_verifier(
    function_of_aws: pytest.MonkeyPatch,
) -> None:
    from control_plane.agents.identity import InvalidProof, Proof

    machine = MachineMetadata("vision--vm-1", GoogleKeys(), project="tests-1")
    machine.account = OTHER_CLOUD["instance"]  # type: ignore[assignment]
    token = machine.keys.sign(machine.claims(f"detcloud/{CLUSTER}/{'d' * 64}"))
    proof = Proof("d" * 64, {"identity_token": token})
    with certificate_server(machine.keys) as url:
        function_of_aws.setenv("DETCLOUD_CERTIFICATES_URL", url)
        made = adapters()
        assert (made.find_verifier("aws").cloud, made.find_verifier("gcp").cloud) == (
            "AWS",
            "Google Cloud",
        )
        assert made.find_verifier("local") is None
        assert made.find_verifier("gcp").verify_proof(proof).id == machine.name
        machine.account = "somebody@tests-1.iam.gserviceaccount.com"
        token = machine.keys.sign(machine.claims(f"detcloud/{CLUSTER}/{'d' * 64}"))
        with pytest.raises(InvalidProof, match="not of this cluster's service account"):
            made.find_verifier("gcp").verify_proof(Proof("d" * 64, {"identity_token": token}))


def test_launch_on_google_uses_the_remote_account_and_no_bucket(
    function_of_aws: pytest.MonkeyPatch,
) -> None:
    kept: list[str] = []
    project = Project(lambda: 1_000_000, name="tests-1")
    with gce_server(project) as gce:
        function_of_aws.setenv("DETCLOUD_COMPUTE_ENDPOINT", gce.url)
        function_of_aws.setenv("DETCLOUD_BILLING_ENDPOINT", "http://127.0.0.1:9")
        parts = HostParts(
            CLUSTER, "https://api.example", lambda: 1_000_000, lambda: kept.append("code")
        )
        other = OtherClouds(OTHER_CLOUDS, lambda: parts).find_cloud("gcp")
        assert other is not None
        offering = Offering("n1/spot", "n1-standard-4", "", Market.SPOT, 1)
        settings = ProvisionerSettings("gcp", section='{"cpu_slots_allowed": true}')
        cloud = other.cloud_provider(settings)
        request = IntentRow("i-1", CLUSTER, "gpus", offering, 1, "t" * 40, 1_000_000)
        [launched] = cloud.launch(request)
    assert kept == ["code"]
    machine = project.machines[launched.id]
    assert machine.name.startswith("vision--vm-")
    assert machine.properties["serviceAccounts"][0]["email"] == OTHER_CLOUD["instance"]
    script = machine.metadata["startup-script"].splitlines()
    assert "code_place=''" in script
    assert "url='https://api.example'" in script


PROFILE = "arn:aws:iam::123456789012:instance-profile/detcloud-vision-instance"
AWS_REMOTE_ACCOUNT = {
    "region": "us-east-1",
    "launcher": "arn:aws:iam::123456789012:role/detcloud-vision-launcher",
    "instance": "arn:aws:iam::123456789012:role/detcloud-vision-instance",
    "network": {
        "subnets": {"us-east-1a": f"subnet-{0:017x}"},
        "security_group": "sg-5",
        "instance_profile": PROFILE,
    },
}


@pytest.fixture
def function_of_google(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The environment of a function on Google Cloud, with a remote account on AWS."""
    for package in ("botocore", "google.auth", "moto"):
        require(package)
    environment = {
        "DETCLOUD_CLUSTER": CLUSTER,
        "DETCLOUD_API_URL": "https://api.example",
        "DETCLOUD_PROJECT": "tests-1",
        "DETCLOUD_INSTANCE_ACCOUNT": "vm@tests-1.iam.gserviceaccount.com",
        VARIABLE: json.dumps({"aws": AWS_REMOTE_ACCOUNT}),
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


def test_stack_on_google_cloud_has_pools_on_aws(
    function_of_google: pytest.MonkeyPatch,
) -> None:
    from lambdas.gcp.adapters import GcpAdapters

    made = GcpAdapters()
    assert made.provider_types == {"aws", "gcp"}
    verifiers = [made.find_verifier(name) for name in ("aws", "gcp")]
    assert [verifier and verifier.cloud for verifier in verifiers] == ["AWS", "Google Cloud"]


def test_launch_on_aws_assumes_a_role_with_an_identity_token(
    function_of_google: pytest.MonkeyPatch,
) -> None:
    from tests.emulators.ec2.region import Region
    from tests.emulators.ec2.serving import ec2_server
    from tests.emulators.token_services import token_services

    audiences: list[str] = []

    def make_token(audience: str) -> str:
        audiences.append(audience)
        return f"signed for {audience}"

    now_ms = 1_700_000_000_000
    region = Region(lambda: now_ms, lets_in=lambda name: "Credential=ASIATESTS" in name)
    with ec2_server(region) as ec2, token_services() as services:
        services.role = AWS_REMOTE_ACCOUNT["launcher"]  # type: ignore[assignment]
        services.tokens = {f"signed for detcloud-aws:{CLUSTER}"}
        function_of_google.setenv("AWS_ENDPOINT_URL_EC2", ec2.url)
        function_of_google.setenv("AWS_ENDPOINT_URL_STS", services.url)
        parts = HostParts(CLUSTER, "https://api.example", lambda: now_ms, lambda: None, make_token)
        text = json.dumps({"aws": AWS_REMOTE_ACCOUNT})
        other = OtherClouds(text, lambda: parts).find_cloud("aws")
        assert other is not None
        offering = Offering("g5/spot", "g5.xlarge", "", Market.SPOT, 1)
        section = '{"cpu_slots_allowed": true, "image_id": "ami-0123456789abcdef0"}'
        cloud = other.cloud_provider(ProvisionerSettings("aws", section=section))
        request = IntentRow("i-1", CLUSTER, "gpus", offering, 1, "t" * 40, now_ms, section)
        [launched] = cloud.launch(request)
        # A host without identity tokens launches nothing.
        without = HostParts(CLUSTER, "https://api.example", lambda: now_ms, lambda: None)
        stranger = OtherClouds(text, lambda: without).find_cloud("aws")
        assert stranger is not None
        with pytest.raises(CloudError, match="no credentials for AWS"):
            stranger.cloud_provider(ProvisionerSettings("aws", section=section)).launch(request)
    assert audiences == [f"detcloud-aws:{CLUSTER}"]
    assert services.given == ["role"]
    machine = region.machines[launched.id]
    assert machine.data["IamInstanceProfile"]["Arn"] == PROFILE
    script = machine.script.decode().splitlines()
    assert "code_place=''" in script
    assert any('"$url/api/v1/instances/$name/agent-code"' in line for line in script)


def test_remote_cloud_is_imported_only_for_a_pool(tmp_path: Path) -> None:
    require("aws_lambda_powertools")
    check = f"""
import os, sys
os.environ["{VARIABLE}"] = '''{OTHER_CLOUDS}'''
from lambdas.aws import tick
adapters = tick.cluster.adapters
assert "gcp" in adapters.provider_types
ours = ("lambdas.gcp", "provisioner.clouds.gcp", "google.auth")
found = [name for name in sys.modules if name.startswith(ours)]
assert not found, found
"""
    environment = {"AWS_REGION": "us-east-1", "DETCLOUD_CLUSTER": CLUSTER, "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", check],
        cwd=Path(__file__).parents[3],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PROCESS_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr
