"""An instance proves an identity once; the proven token enrols this instance only."""

import hashlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from control_plane.agents.identity import IDENTITIES, InvalidProof, Proof, Signer
from control_plane.aws.instance_identity import AwsProof
from control_plane.fleet.records import InstanceRow, InstanceState, Market, Offering
from tests.unit.api.cluster import NOW_MS, V1, Cluster, build_cluster, put_instance
from tests.unit.api.exchange import Answer, call

INSTANCE = "i-0123456789abcdef0"
OFFERING = Offering("g5/a/spot", "g5.xlarge", "a", Market.SPOT, 1)
ROW = InstanceRow(INSTANCE, "default", OFFERING, InstanceState.STARTING, NOW_MS, "intent-1")
TOKEN, OTHER_TOKEN = "dct_of-the-instance", "dct_of-somebody-else"


@dataclass
class FakeIdentityVerifier:
    """A verifier with the proof fields of AWS; the signature names the instance.

    `fails` is the error that `verify_proof` raises, or None.
    """

    fails: Exception | None = None
    cloud: str = "AWS"
    proofs: list[Proof] = field(default_factory=list)

    def verify_proof(self, proof: Proof) -> Signer:
        self.proofs.append(proof)
        fields = AwsProof.model_validate(proof.fields)
        if self.fails is not None:
            raise self.fails
        if not fields.authorization.startswith("signed by "):
            raise InvalidProof("AWS does not accept the signature")
        return Signer(fields.authorization.removeprefix("signed by "))


class OtherIdentityVerifier:
    """A verifier of a cloud with a different proof field, `identity_token`."""

    cloud = "Another cloud"

    def verify_proof(self, proof: Proof) -> Signer:
        assert set(proof.fields) == {"identity_token"}
        if proof.fields["identity_token"] == "late":
            raise TimeoutError("timed out")
        return Signer(proof.fields["identity_token"])


@pytest.fixture
def verifier() -> FakeIdentityVerifier:
    return FakeIdentityVerifier()


@pytest.fixture
def cluster(tmp_path: Path, verifier: FakeIdentityVerifier) -> Cluster:
    cluster = build_cluster(tmp_path, verifiers={"aws": verifier})
    put_instance(cluster, ROW, "aws")
    return cluster


def proof_body(token: str = TOKEN) -> dict[str, Any]:
    return {
        "resource_pool": "default",
        "token_sha256": hashlib.sha256(token.encode()).hexdigest(),
        "authorization": f"signed by {INSTANCE}",
        "date": "20270115T080000Z",
        "security_token": "session",
    }


def send(cluster: Cluster, content: Any) -> Answer:
    return call(cluster.app, "PUT", f"{V1}/instances/{INSTANCE}/identity", content=content)


def prove(cluster: Cluster, token: str = TOKEN, **fields: Any) -> Answer:
    return send(cluster, {**proof_body(token), **fields})


def enrol(cluster: Cluster, name: str = INSTANCE, token: str = TOKEN) -> Answer:
    slots = [{"id": 0, "type": "cuda", "uuid": "u", "name": "A10G"}]
    body = {"name": name, "resource_pool": "default", "slots": slots}
    return call(cluster.app, "POST", f"{V1}/agents", token=token, content=body)


def test_proven_token_enrols_the_instance(cluster: Cluster) -> None:
    assert enrol(cluster).code == "unauthenticated"
    assert prove(cluster).status == 200
    assert enrol(cluster).status == 200


def test_repeated_proof_has_no_effect(cluster: Cluster) -> None:
    assert [prove(cluster).status for _ in range(3)] == [200, 200, 200]
    assert enrol(cluster).status == 200


def test_second_proof_is_refused_and_logged_as_critical(
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


def test_instance_enrols_under_the_own_name_only(cluster: Cluster) -> None:
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
        ({"more": "text"}, 422),
        # 5 required and 12 further fields are 17; at most 16 are allowed.
        ({f"more_{n}": "text" for n in range(12)}, 422),
        ({"authorization": None}, 422),
        ({"authorization": ["signed by i-0123456789abcdef0"]}, 422),
        ({"security_token": {"a": "b"}}, 422),
        ({"security_token": 1}, 422),
        ({"security_token": ""}, 422),
        ({"security_token": "x" * 4097}, 422),
        ({"security_token": "a\x00"}, 422),
        ({"security_token": "a\x7f"}, 422),
        ({"security_token": "session\n"}, 422),
        ({"security_token": "séance"}, 422),
        ({"authorization": "signed by\ti-0123456789abcdef0"}, 422),
        ({"date": "20270115T080000Z\n"}, 422),
        # Digits of a different script, which headers must not contain.
        ({"date": "\u0662\u0660\u0662\u0667\u0660\u0661\u0661\u0665T080000Z"}, 422),
        ({"token_sha256": 1}, 422),
        ({"resource_pool": ""}, 422),
    ],
)
def test_rejects_invalid_proofs(cluster: Cluster, fields: dict[str, Any], status: int) -> None:
    assert prove(cluster, **fields).status == status
    assert not cluster.services.table.query(IDENTITIES, "a", "z").rows


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"date": "now"}, "date: must be a time like 20260131T235959Z"),
        ({"more": "text", "other": "text"}, "more: is not a known field; other: is not a known"),
        ({"security_token": 1}, "security_token: must be a valid string"),
        ({"security_token": "x" * 4097}, "security_token: must have at most 4096 characters"),
        ({f"more_{n}": "text" for n in range(2000)}, "the request is not valid: must have at most"),
    ],
)
def test_refusal_names_the_fault_and_repeats_no_value(
    cluster: Cluster, fields: dict[str, Any], expected: str
) -> None:
    answer = prove(cluster, **fields)
    message = answer.json["error"]["message"]
    assert message.startswith("the request is not valid: ")
    assert expected in message
    assert "input" not in answer.body.decode()
    assert len(answer.body) < 1000


@pytest.mark.parametrize("missing", ["authorization", "date", "security_token"])
def test_proof_fields_of_the_cloud_are_required(cluster: Cluster, missing: str) -> None:
    content = proof_body()
    del content[missing]
    answer = send(cluster, content)
    assert (answer.status, answer.json["error"]["details"]) == (
        422,
        [{"path": missing, "message": "is required"}],
    )


@pytest.mark.parametrize("content", [[], "text", 1, None, [{}] * 100])
def test_rejects_proof_without_an_object(cluster: Cluster, content: Any) -> None:
    assert send(cluster, content).status == 422


def test_verifier_defines_the_fields_of_a_proof(tmp_path: Path) -> None:
    cluster = build_cluster(tmp_path, verifiers={"aws": OtherIdentityVerifier()})
    put_instance(cluster, ROW, "aws")
    content = {
        "resource_pool": "default",
        "token_sha256": hashlib.sha256(TOKEN.encode()).hexdigest(),
        "identity_token": INSTANCE,
    }
    assert send(cluster, content).status == 200
    assert enrol(cluster).status == 200
    answer = send(cluster, {**content, "identity_token": "late"})
    assert answer.json["error"]["message"] == "Another cloud does not answer: timed out"


def test_instance_cannot_enrol_while_terminating(cluster: Cluster) -> None:
    prove(cluster)
    put_instance(cluster, replace(ROW, state=InstanceState.TERMINATING), "aws")
    assert enrol(cluster).status == 403


def test_proof_before_the_instance_row_is_not_found(
    tmp_path: Path, verifier: FakeIdentityVerifier
) -> None:
    cluster = build_cluster(tmp_path, verifiers={"aws": verifier})
    assert prove(cluster).code == "not_found"
    put_instance(cluster, ROW, "aws")
    assert prove(cluster).status == 200


def test_proof_is_unavailable_if_the_cloud_does_not_answer(
    cluster: Cluster, verifier: FakeIdentityVerifier
) -> None:
    verifier.fails = TimeoutError("timed out")
    answer = prove(cluster)
    assert answer.code == "unavailable"
    assert answer.json["error"]["message"] == "AWS does not answer: timed out"


def test_cluster_without_a_cloud_has_no_identity_route(tmp_path: Path) -> None:
    assert prove(build_cluster(tmp_path)).code == "not_found"
