"""An instance proves who it is once, and its token lets itself in and nobody else."""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from control_plane.agents.identity import IDENTITIES, InvalidProof, Proof
from control_plane.fleet.records import InstanceRow, InstanceState, Market, Offering
from control_plane.fleet.rows import encode_row, instance_key
from control_plane.state.table import Expect, Put
from tests.unit.api.cluster import NOW_MS, V1, Cluster, build_cluster
from tests.unit.api.exchange import Answer, call

INSTANCE = "i-0123456789abcdef0"
OFFERING = Offering("g5/a/spot", "g5.xlarge", "a", Market.SPOT, 1)
ROW = InstanceRow(INSTANCE, "default", OFFERING, InstanceState.STARTING, NOW_MS, "intent-1")
TOKEN, OTHER_TOKEN = "dct_of-the-instance", "dct_of-somebody-else"


@dataclass
class FakeIdentityVerifier:
    """A cloud that knows one signature for each instance."""

    fails: Exception | None = None

    def verify_proof(self, proof: Proof) -> str:
        if self.fails is not None:
            raise self.fails
        if not proof.authorization.startswith("signed by "):
            raise InvalidProof("AWS does not accept the signature")
        return proof.authorization.removeprefix("signed by ")


@pytest.fixture
def verifier() -> FakeIdentityVerifier:
    return FakeIdentityVerifier()


@pytest.fixture
def cluster(tmp_path: Path, verifier: FakeIdentityVerifier) -> Cluster:
    cluster = build_cluster(tmp_path, identity_verifier=verifier)
    put_instance_row(cluster, ROW)
    return cluster


def put_instance_row(cluster: Cluster, row: InstanceRow) -> None:
    cluster.services.table.commit((Put(instance_key(row), 1, encode_row(row), Expect.ANYTHING),))


def prove(cluster: Cluster, token: str = TOKEN, **fields: Any) -> Answer:
    body = {
        "resource_pool": "default",
        "token_sha256": hashlib.sha256(token.encode()).hexdigest(),
        "authorization": f"signed by {INSTANCE}",
        "date": "20270115T080000Z",
        "security_token": "session",
        **fields,
    }
    return call(cluster.app, "PUT", f"{V1}/instances/{INSTANCE}/identity", content=body)


def enrol(cluster: Cluster, name: str = INSTANCE, token: str = TOKEN) -> Answer:
    slots = [{"id": 0, "type": "cuda", "uuid": "u", "name": "A10G"}]
    body = {"name": name, "resource_pool": "default", "slots": slots}
    return call(cluster.app, "POST", f"{V1}/agents", token=token, content=body)


def test_a_token_that_was_proved_lets_the_instance_in(cluster: Cluster) -> None:
    assert enrol(cluster).code == "unauthenticated"
    assert prove(cluster).status == 200
    assert enrol(cluster).status == 200


def test_the_same_proof_again_changes_nothing(cluster: Cluster) -> None:
    assert [prove(cluster).status for _ in range(3)] == [200, 200, 200]
    assert enrol(cluster).status == 200


def test_a_second_proof_is_refused_and_alarms(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    prove(cluster)
    answer = prove(cluster, OTHER_TOKEN)
    assert (answer.status, answer.code) == (403, "forbidden")
    assert [record.levelname for record in caplog.records if INSTANCE in record.message] == [
        "CRITICAL"
    ]
    assert enrol(cluster, token=OTHER_TOKEN).code == "unauthenticated"
    assert enrol(cluster).status == 200


def test_an_instance_enrols_as_itself_only(cluster: Cluster) -> None:
    prove(cluster)
    answer = enrol(cluster, name="i-0fedcba9876543210")
    assert (answer.status, answer.code) == (403, "forbidden")


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"authorization": "signed by i-0fedcba9876543210"}, 403),
        ({"authorization": "made up"}, 403),
        ({"resource_pool": "another"}, 404),
        ({"token_sha256": "0" * 63}, 422),
        ({"security_token": "a\r\nHost: b"}, 422),
        ({"date": "now"}, 422),
        ({"more": 1}, 422),
    ],
)
def test_what_proves_nothing_is_refused(
    cluster: Cluster, fields: dict[str, Any], status: int
) -> None:
    assert prove(cluster, **fields).status == status
    assert not cluster.services.table.query(IDENTITIES, "a", "z").rows


def test_an_instance_that_is_not_wanted_is_not_let_in(cluster: Cluster) -> None:
    prove(cluster)
    put_instance_row(cluster, replace(ROW, state=InstanceState.TERMINATING))
    assert enrol(cluster).status == 403


def test_an_instance_whose_row_is_not_written_yet_asks_again(
    tmp_path: Path, verifier: FakeIdentityVerifier
) -> None:
    cluster = build_cluster(tmp_path, identity_verifier=verifier)
    assert prove(cluster).code == "not_found"
    put_instance_row(cluster, ROW)
    assert prove(cluster).status == 200


def test_a_cloud_that_does_not_answer_is_no_refusal(
    cluster: Cluster, verifier: FakeIdentityVerifier
) -> None:
    verifier.fails = TimeoutError("timed out")
    assert prove(cluster).code == "unavailable"


def test_a_cluster_without_a_cloud_knows_no_proofs(tmp_path: Path) -> None:
    assert prove(build_cluster(tmp_path)).code == "not_found"
