"""A cluster with pools of two clouds:

the launching cloud alone decides who verifies an instance.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import require

require("google.auth")
require("cryptography")

from control_plane.agents.agent_code import agent_code, keep_agent_code  # noqa: E402
from control_plane.agents.identity import IDENTITIES  # noqa: E402
from control_plane.fleet.records import (  # noqa: E402
    InstanceRow,
    InstanceState,
    Market,
    Offering,
)
from control_plane.gcp.google_certificates import GoogleCertificates  # noqa: E402
from control_plane.gcp.instance_identity import GoogleIdentityVerifier  # noqa: E402
from detcloud.shared.gcp_identity import token_audience  # noqa: E402
from detcloud.shared.identity_purposes import AGENT_CODE, BOOT_REPORT, proven_cluster  # noqa: E402
from tests.emulators.gce.metadata import MachineMetadata  # noqa: E402
from tests.emulators.google_keys import GoogleKeys, certificate_server  # noqa: E402
from tests.unit.api.cluster import NOW_MS, V1, Cluster, build_cluster, put_instance  # noqa: E402
from tests.unit.api.exchange import Answer, call  # noqa: E402
from tests.unit.api.test_api_instances import FakeIdentityVerifier  # noqa: E402

CLUSTER = "cluster-1"
EC2_POOL, GCE_POOL = "on-aws", "on-gcp"
EC2_NAME, GCE_NAME = "i-0123456789abcdef0", "detcloud-vision-a1b2"
TOKEN, OTHER_TOKEN = "dct_of-the-instance", "dct_of-somebody-else"


@dataclass
class Clouds:
    """A cluster with an instance in each cloud, Google's machine and the fake verifier of AWS."""

    cluster: Cluster
    machine: MachineMetadata
    aws: FakeIdentityVerifier

    def google_proof(self, digest: str, purpose: str = "", **claims: Any) -> dict[str, str]:
        """Return a proof signed by Google for the machine, with `claims` replaced."""
        audience = token_audience(proven_cluster(CLUSTER, purpose), digest)
        signed_claims = self.machine.claims(audience)
        machine = {**signed_claims["google"]["compute_engine"], **claims.pop("machine", {})}
        signed_claims |= {"google": {"compute_engine": machine}, **claims}
        return {"identity_token": self.machine.keys.sign(signed_claims)}

    def prove(self, name: str, pool: str, proof: dict[str, str], token: str = TOKEN) -> Answer:
        """Send an instance's proof of a token."""
        body = {"resource_pool": pool, "token_sha256": digest_of(token), **proof}
        return call(self.cluster.app, "PUT", f"{V1}/instances/{name}/identity", content=body)

    def ask_for_code(self, digest: str, proof: dict[str, str], name: str = GCE_NAME) -> Answer:
        """Request the agent's code for an instance."""
        body = {"resource_pool": GCE_POOL, "sha256": digest, **proof}
        return call(self.cluster.app, "POST", f"{V1}/instances/{name}/agent-code", content=body)

    def identities(self) -> list[str]:
        """Return the instances with a proven identity."""
        rows = self.cluster.services.table.query(IDENTITIES, " ", "~").rows
        return [row.key.sort for row in rows]


def digest_of(token: str) -> str:
    return sha256(token.encode()).hexdigest()


def row(name: str, pool: str, state: InstanceState = InstanceState.STARTING) -> InstanceRow:
    offering = Offering("one/a/spot", "one", "a", Market.SPOT, 1)
    return InstanceRow(name, pool, offering, state, NOW_MS, "intent-1")


AWS_PROOF = {
    "authorization": f"signed by {EC2_NAME}",
    "date": "20270115T080000Z",
    "security_token": "session",
}


@pytest.fixture
def clouds(tmp_path: Path) -> Iterator[Clouds]:
    machine, aws = MachineMetadata(GCE_NAME, GoogleKeys()), FakeIdentityVerifier()
    with certificate_server(machine.keys) as url:
        certificates = GoogleCertificates(url)
        google = GoogleIdentityVerifier(CLUSTER, machine.project, machine.account, certificates)
        cluster = build_cluster(tmp_path, verifiers={"aws": aws, "gcp": google})
        put_instance(cluster, row(EC2_NAME, EC2_POOL), "aws")
        launched = replace(row(GCE_NAME, GCE_POOL), uid=str(machine.numeric_id))
        put_instance(cluster, replace(launched, zone=machine.zone), "gcp")
        yield Clouds(cluster, machine, aws)


def test_cloud_of_the_instance_verifies_the_proof(clouds: Clouds) -> None:
    assert clouds.prove(EC2_NAME, EC2_POOL, AWS_PROOF).status == 200
    proof = clouds.google_proof(digest_of(OTHER_TOKEN))
    assert clouds.prove(GCE_NAME, GCE_POOL, proof, OTHER_TOKEN).status == 200
    assert clouds.identities() == [GCE_NAME, EC2_NAME]


def test_rejects_proofs_of_the_wrong_cloud(clouds: Clouds) -> None:
    digest = digest_of(TOKEN)
    # Each proof is valid for some instance; the fields alone do not decide which.
    assert clouds.prove(EC2_NAME, EC2_POOL, clouds.google_proof(digest)).status == 422
    as_ec2 = clouds.google_proof(digest, machine={"instance_name": EC2_NAME})
    assert clouds.prove(EC2_NAME, EC2_POOL, as_ec2).status == 422
    assert clouds.prove(GCE_NAME, GCE_POOL, AWS_PROOF).status == 422
    both = {**AWS_PROOF, **clouds.google_proof(digest)}
    assert clouds.prove(GCE_NAME, GCE_POOL, both).status == 422
    assert clouds.prove(EC2_NAME, EC2_POOL, both).status == 422
    assert clouds.identities() == []


def test_rejects_proofs_for_pools_of_other_instances(clouds: Clouds) -> None:
    assert clouds.prove(EC2_NAME, GCE_POOL, AWS_PROOF).status == 422
    proof = clouds.google_proof(digest_of(TOKEN))
    assert clouds.prove(GCE_NAME, EC2_POOL, proof).status == 422
    # Nor is a proof valid in a pool of the right cloud that did not launch the instance.
    put_instance(clouds.cluster, row("detcloud-vision-other", "third"), "gcp")
    assert clouds.prove(GCE_NAME, "third", proof).status == 404
    assert clouds.identities() == []


@pytest.mark.parametrize(
    "claims",
    [
        {"machine": {"project_id": "another-project"}},
        {"email": "vm@another-project.iam.gserviceaccount.com"},
        {"email_verified": False},
        {"aud": token_audience("another-cluster", digest_of(TOKEN))},
        {"machine": {"instance_name": "detcloud-vision-other"}},
        {"machine": {"instance_id": "1"}},
        {"machine": {"zone": "us-central1-f"}},
    ],
    ids=["project", "account", "unverified", "cluster", "instance", "number", "zone"],
)
def test_rejects_google_tokens_of_other_machines(clouds: Clouds, claims: dict[str, Any]) -> None:
    proof = clouds.google_proof(digest_of(TOKEN), **claims)
    assert clouds.prove(GCE_NAME, GCE_POOL, proof).status == 403
    assert clouds.identities() == []


def test_overheard_proof_is_valid_for_the_proven_token_only(clouds: Clouds) -> None:
    proof = clouds.google_proof(digest_of(TOKEN))
    assert [clouds.prove(GCE_NAME, GCE_POOL, proof).status for _ in range(2)] == [200, 200]
    assert clouds.prove(GCE_NAME, GCE_POOL, proof, OTHER_TOKEN).status == 403
    # Even the instance itself cannot prove a second token.
    second = clouds.google_proof(digest_of(OTHER_TOKEN))
    answer = clouds.prove(GCE_NAME, GCE_POOL, second, OTHER_TOKEN)
    assert (answer.status, answer.code) == (403, "forbidden")


def test_launching_cloud_verifies_instances_of_a_reconfigured_pool(
    clouds: Clouds,
) -> None:
    # The fleet row says `aws` until the last instance of EC2 has ended, despite the configuration.
    put_instance(clouds.cluster, row(EC2_NAME, GCE_POOL), "aws")
    assert clouds.prove(EC2_NAME, GCE_POOL, AWS_PROOF).status == 200
    proof = clouds.google_proof(digest_of(TOKEN))
    assert clouds.prove(GCE_NAME, GCE_POOL, proof).status == 422


@pytest.mark.parametrize("provider_type", ["local", "no-cloud"])
def test_pool_without_a_cloud_has_no_identity_route(clouds: Clouds, provider_type: str) -> None:
    put_instance(clouds.cluster, row("desk-1", "desk"), provider_type)
    answer = clouds.prove("desk-1", "desk", AWS_PROOF)
    assert (answer.status, answer.code) == (404, "not_found")
    assert clouds.aws.proofs == []


def test_booting_instance_gets_only_the_proven_agent_code(clouds: Clouds) -> None:
    code = agent_code()
    proof = clouds.google_proof(code.sha256, AGENT_CODE)
    assert clouds.ask_for_code(code.sha256, proof).status == 404
    keep_agent_code(clouds.cluster.objects)
    answer = clouds.ask_for_code(code.sha256, proof)
    assert (answer.status, sha256(answer.body).hexdigest()) == (200, code.sha256)
    # The proof opens no identity, and proofs for other purposes give no code.
    assert clouds.identities() == []
    for purpose in ("", BOOT_REPORT):
        other = clouds.google_proof(code.sha256, purpose)
        assert clouds.ask_for_code(code.sha256, other).status == 403
    # The proof covers one object, and the route serves no other objects.
    assert clouds.ask_for_code("e" * 64, proof).status == 403
    assert clouds.ask_for_code("../config/cluster.yaml", proof).status == 422
    assert clouds.ask_for_code(code.sha256, proof, "detcloud-vision-other").status == 403


def test_terminating_instance_gets_no_agent_code(clouds: Clouds) -> None:
    keep_agent_code(clouds.cluster.objects)
    put_instance(clouds.cluster, row(GCE_NAME, GCE_POOL, InstanceState.TERMINATING), "gcp")
    digest = agent_code().sha256
    answer = clouds.ask_for_code(digest, clouds.google_proof(digest, AGENT_CODE))
    assert (answer.status, answer.code) == (404, "not_found")
