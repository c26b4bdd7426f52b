"""An instance proves who it is once, and its token lets itself in and nobody else."""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from control_plane.agents.identity import IDENTITIES, Proof, ProofRefused
from control_plane.fleet.records import InstanceRow, InstanceState, Market, Offering
from control_plane.fleet.rows import encode, instance_key
from control_plane.state.table import Expect, Put
from tests.unit.api.cluster import NOW_MS, V1, Cluster, cluster
from tests.unit.api.exchange import Answer, call

INSTANCE = "i-0123456789abcdef0"
OFFERING = Offering("g5/a/spot", "g5.xlarge", "a", Market.SPOT, 1)
ROW = InstanceRow(INSTANCE, "default", OFFERING, InstanceState.STARTING, NOW_MS, "intent-1")
TOKEN, OTHER_TOKEN = "dct_of-the-instance", "dct_of-somebody-else"


@dataclass
class Vouching:
    """A cloud that knows one signature for each instance."""

    fails: Exception | None = None

    def instance_of(self, proof: Proof) -> str:
        if self.fails is not None:
            raise self.fails
        if not proof.authorization.startswith("signed by "):
            raise ProofRefused("AWS does not accept the signature")
        return proof.authorization.removeprefix("signed by ")


@pytest.fixture
def witness() -> Vouching:
    return Vouching()


@pytest.fixture
def served(tmp_path: Path, witness: Vouching) -> Cluster:
    made = cluster(tmp_path, witness=witness)
    keep(made, ROW)
    return made


def keep(served: Cluster, row: InstanceRow) -> None:
    served.services.table.commit((Put(instance_key(row), 1, encode(row), Expect.ANYTHING),))


def prove(served: Cluster, token: str = TOKEN, **fields: Any) -> Answer:
    body = {
        "resource_pool": "default",
        "token_sha256": hashlib.sha256(token.encode()).hexdigest(),
        "authorization": f"signed by {INSTANCE}",
        "date": "20270115T080000Z",
        "security_token": "session",
        **fields,
    }
    return call(served.app, "PUT", f"{V1}/instances/{INSTANCE}/identity", content=body)


def enrol(served: Cluster, name: str = INSTANCE, token: str = TOKEN) -> Answer:
    slots = [{"id": 0, "type": "cuda", "uuid": "u", "name": "A10G"}]
    body = {"name": name, "resource_pool": "default", "slots": slots}
    return call(served.app, "POST", f"{V1}/agents", token=token, content=body)


def test_a_token_that_was_proved_lets_the_instance_in(served: Cluster) -> None:
    assert enrol(served).code == "unauthenticated"
    assert prove(served).status == 200
    assert enrol(served).status == 200


def test_the_same_proof_again_changes_nothing(served: Cluster) -> None:
    assert [prove(served).status for _ in range(3)] == [200, 200, 200]
    assert enrol(served).status == 200


def test_a_second_proof_is_refused_and_alarms(
    served: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    prove(served)
    answer = prove(served, OTHER_TOKEN)
    assert (answer.status, answer.code) == (403, "forbidden")
    assert [record.levelname for record in caplog.records if INSTANCE in record.message] == [
        "CRITICAL"
    ]
    assert enrol(served, token=OTHER_TOKEN).code == "unauthenticated"
    assert enrol(served).status == 200


def test_an_instance_enrols_as_itself_only(served: Cluster) -> None:
    prove(served)
    answer = enrol(served, name="i-0fedcba9876543210")
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
    served: Cluster, fields: dict[str, Any], status: int
) -> None:
    assert prove(served, **fields).status == status
    assert not served.services.table.query(IDENTITIES, "a", "z").rows


def test_an_instance_that_is_not_wanted_is_not_let_in(served: Cluster) -> None:
    prove(served)
    keep(served, replace(ROW, state=InstanceState.TERMINATING))
    assert enrol(served).status == 403


def test_an_instance_whose_row_is_not_written_yet_asks_again(
    tmp_path: Path, witness: Vouching
) -> None:
    served = cluster(tmp_path, witness=witness)
    assert prove(served).code == "not_found"
    keep(served, ROW)
    assert prove(served).status == 200


def test_a_cloud_that_does_not_answer_is_no_refusal(served: Cluster, witness: Vouching) -> None:
    witness.fails = TimeoutError("timed out")
    assert prove(served).code == "unavailable"


def test_a_cluster_without_a_cloud_knows_no_proofs(tmp_path: Path) -> None:
    assert prove(cluster(tmp_path)).code == "not_found"
