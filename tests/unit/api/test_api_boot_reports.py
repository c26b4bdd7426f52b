"""Reports of instances that fail to boot:

stored without secrets, and valid for no other purpose.
"""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from control_plane.agents.identity import InvalidProof
from control_plane.fleet.notices import InstanceNotice, read_notices
from control_plane.fleet.records import InstanceState
from detcloud.shared.boot_log import BOOT_LOG_CHARACTERS_MAX
from detcloud.shared.identity_purposes import BOOT_REPORT
from tests.unit.api.cluster import NOW_MS, V1, Cluster, build_cluster, put_instance
from tests.unit.api.exchange import Answer, call
from tests.unit.api.test_api_instances import (
    INSTANCE,
    ROW,
    FakeIdentityVerifier,
    enrol,
)

REPORT = "E: no route to host, password=hunter2\ndetcloud: the boot failed"


@pytest.fixture
def verifier() -> FakeIdentityVerifier:
    return FakeIdentityVerifier()


@pytest.fixture
def cluster(tmp_path: Path, verifier: FakeIdentityVerifier) -> Cluster:
    cluster = build_cluster(tmp_path, verifiers={"aws": verifier})
    put_instance(cluster, ROW, "aws")
    return cluster


def report(cluster: Cluster, **fields: Any) -> Answer:
    body = {
        "resource_pool": "default",
        "report": REPORT,
        "authorization": f"signed by {INSTANCE}",
        "date": "20270115T080000Z",
        "security_token": "session",
        **fields,
    }
    return call(cluster.app, "PUT", f"{V1}/instances/{INSTANCE}/boot-report", content=body)


def notices(cluster: Cluster) -> list[InstanceNotice]:
    return list(read_notices(cluster.services.table))


def test_boot_report_is_stored_with_masked_secrets(
    cluster: Cluster, verifier: FakeIdentityVerifier
) -> None:
    assert report(cluster).status == 200
    text = "E: no route to host, password=********\ndetcloud: the boot failed"
    assert notices(cluster) == [InstanceNotice(INSTANCE, boot_report=text)]
    # The signature covers the unmasked text and the purpose.
    digest = hashlib.sha256(REPORT.encode()).hexdigest()
    (proof,) = verifier.proofs
    assert (proof.token_sha256, proof.purpose) == (digest, BOOT_REPORT)


def test_second_boot_report_is_ignored(cluster: Cluster) -> None:
    report(cluster)
    assert report(cluster, report="another").status == 200
    assert [notice.boot_report.splitlines()[-1] for notice in notices(cluster)] == [
        "detcloud: the boot failed"
    ]


def test_boot_report_text_is_no_join_token(cluster: Cluster) -> None:
    report(cluster)
    assert enrol(cluster, token=REPORT.replace("\n", " ")).code == "unauthenticated"


@pytest.mark.parametrize(
    "row",
    [
        replace(ROW, connected_ms=NOW_MS),
        replace(ROW, state=InstanceState.TERMINATING),
    ],
)
def test_refuses_boot_reports_after_the_boot(cluster: Cluster, row: Any) -> None:
    put_instance(cluster, row, "aws")
    answer = report(cluster)
    assert (answer.status, answer.code) == (404, "not_found")
    assert notices(cluster) == []


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"authorization": "signed by i-0fedcba9876543210"}, 403),
        ({"authorization": "forged"}, 403),
        ({"resource_pool": "another"}, 404),
        ({"report": ""}, 422),
        ({"report": "x" * (BOOT_LOG_CHARACTERS_MAX + 1)}, 422),
        ({"token_sha256": "a" * 64}, 422),
    ],
)
def test_rejects_invalid_boot_reports(
    cluster: Cluster, fields: dict[str, Any], status: int
) -> None:
    assert report(cluster, **fields).status == status
    assert notices(cluster) == []


def test_boot_report_can_be_repeated_after_a_cloud_failure(
    cluster: Cluster, verifier: FakeIdentityVerifier
) -> None:
    verifier.fails = TimeoutError("timed out")
    assert report(cluster).status == 503
    verifier.fails = InvalidProof("no")
    assert report(cluster).status == 403
    verifier.fails = None
    assert report(cluster).status == 200
