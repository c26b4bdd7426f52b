"""A cluster with pools of two clouds: who vouches for an instance is decided by what launched its
pool, and never by what the instance sends.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
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
    """A cluster that has launched an instance in either cloud, and the one at Google's."""

    cluster: Cluster
    machine: MachineMetadata
    aws: FakeIdentityVerifier

    def google_proof(self, digest: str, purpose: str = "", **claims: Any) -> dict[str, str]:
        """A token that Google signs for a machine, with other claims than its own."""
        audience = token_audience(proven_cluster(CLUSTER, purpose), digest)
        said = self.machine.claims(audience)
        machine = {**said["google"]["compute_engine"], **claims.pop("machine", {})}
        said |= {"google": {"compute_engine": machine}, **claims}
        return {"identity_token": self.machine.keys.sign(said)}

    def prove(self, name: str, pool: str, proof: dict[str, str], token: str = TOKEN) -> Answer:
        """Have an instance prove that it made a token."""
        body = {"resource_pool": pool, "token_sha256": digest_of(token), **proof}
        return call(self.cluster.app, "PUT", f"{V1}/instances/{name}/identity", content=body)

    def ask_for_code(self, digest: str, proof: dict[str, str], name: str = GCE_NAME) -> Answer:
        """Have an instance ask for the agent's code."""
        body = {"resource_pool": GCE_POOL, "sha256": digest, **proof}
        return call(self.cluster.app, "POST", f"{V1}/instances/{name}/agent-code", content=body)

    def identities(self) -> list[str]:
        """The instances that have proved who they are."""
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
        put_instance(cluster, row(GCE_NAME, GCE_POOL), "gcp")
        yield Clouds(cluster, machine, aws)


def test_each_instance_is_vouched_for_by_its_own_cloud(clouds: Clouds) -> None:
    assert clouds.prove(EC2_NAME, EC2_POOL, AWS_PROOF).status == 200
    proof = clouds.google_proof(digest_of(OTHER_TOKEN))
    assert clouds.prove(GCE_NAME, GCE_POOL, proof, OTHER_TOKEN).status == 200
    assert clouds.identities() == [GCE_NAME, EC2_NAME]


def test_a_proof_of_the_other_cloud_is_none_whatever_it_says(clouds: Clouds) -> None:
    digest = digest_of(TOKEN)
    # Each of these is a good proof for somebody; the fields alone do not decide for whom.
    assert clouds.prove(EC2_NAME, EC2_POOL, clouds.google_proof(digest)).status == 422
    as_ec2 = clouds.google_proof(digest, machine={"instance_name": EC2_NAME})
    assert clouds.prove(EC2_NAME, EC2_POOL, as_ec2).status == 422
    assert clouds.prove(GCE_NAME, GCE_POOL, AWS_PROOF).status == 422
    both = {**AWS_PROOF, **clouds.google_proof(digest)}
    assert clouds.prove(GCE_NAME, GCE_POOL, both).status == 422
    assert clouds.prove(EC2_NAME, EC2_POOL, both).status == 422
    assert clouds.identities() == []


def test_an_instance_that_names_the_pool_of_the_other_cloud_gains_nothing(clouds: Clouds) -> None:
    assert clouds.prove(EC2_NAME, GCE_POOL, AWS_PROOF).status == 422
    proof = clouds.google_proof(digest_of(TOKEN))
    assert clouds.prove(GCE_NAME, EC2_POOL, proof).status == 422
    # Nor does one of the right cloud, in a pool of it that did not launch it.
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
    ],
    ids=["project", "account", "unverified", "cluster", "instance"],
)
def test_whoever_else_google_signs_for_is_refused(clouds: Clouds, claims: dict[str, Any]) -> None:
    proof = clouds.google_proof(digest_of(TOKEN), **claims)
    assert clouds.prove(GCE_NAME, GCE_POOL, proof).status == 403
    assert clouds.identities() == []


def test_a_proof_that_was_overheard_lets_in_the_token_that_it_is_of_alone(clouds: Clouds) -> None:
    proof = clouds.google_proof(digest_of(TOKEN))
    assert [clouds.prove(GCE_NAME, GCE_POOL, proof).status for _ in range(2)] == [200, 200]
    assert clouds.prove(GCE_NAME, GCE_POOL, proof, OTHER_TOKEN).status == 403
    # Even the instance itself proves no second token.
    second = clouds.google_proof(digest_of(OTHER_TOKEN))
    answer = clouds.prove(GCE_NAME, GCE_POOL, second, OTHER_TOKEN)
    assert (answer.status, answer.code) == (403, "forbidden")


def test_what_launched_an_instance_counts_and_not_what_its_pool_is_to_be_next(
    clouds: Clouds,
) -> None:
    # The books say `aws` until the last instance of EC2 has ended, whatever is configured.
    put_instance(clouds.cluster, row(EC2_NAME, GCE_POOL), "aws")
    assert clouds.prove(EC2_NAME, GCE_POOL, AWS_PROOF).status == 200
    proof = clouds.google_proof(digest_of(TOKEN))
    assert clouds.prove(GCE_NAME, GCE_POOL, proof).status == 422


@pytest.mark.parametrize("provider_type", ["local", "no-cloud"])
def test_a_pool_of_no_cloud_has_nobody_who_proves_anything(
    clouds: Clouds, provider_type: str
) -> None:
    put_instance(clouds.cluster, row("desk-1", "desk"), provider_type)
    answer = clouds.prove("desk-1", "desk", AWS_PROOF)
    assert (answer.status, answer.code) == (404, "not_found")
    assert clouds.aws.proofs == []


def test_an_instance_that_boots_is_given_the_code_that_it_proves_to_want(clouds: Clouds) -> None:
    code = agent_code()
    proof = clouds.google_proof(code.sha256, AGENT_CODE)
    assert clouds.ask_for_code(code.sha256, proof).status == 404
    keep_agent_code(clouds.cluster.objects)
    answer = clouds.ask_for_code(code.sha256, proof)
    assert (answer.status, sha256(answer.body).hexdigest()) == (200, code.sha256)
    # It is no identity, and a report or an identity is no request for it.
    assert clouds.identities() == []
    for purpose in ("", BOOT_REPORT):
        other = clouds.google_proof(code.sha256, purpose)
        assert clouds.ask_for_code(code.sha256, other).status == 403
    # The proof is of one object, and the route knows no others.
    assert clouds.ask_for_code("e" * 64, proof).status == 403
    assert clouds.ask_for_code("../config/cluster.yaml", proof).status == 422
    assert clouds.ask_for_code(code.sha256, proof, "detcloud-vision-other").status == 403


def test_an_instance_that_is_ended_is_given_no_code(clouds: Clouds) -> None:
    keep_agent_code(clouds.cluster.objects)
    put_instance(clouds.cluster, row(GCE_NAME, GCE_POOL, InstanceState.TERMINATING), "gcp")
    digest = agent_code().sha256
    answer = clouds.ask_for_code(digest, clouds.google_proof(digest, AGENT_CODE))
    assert (answer.status, answer.code) == (404, "not_found")
