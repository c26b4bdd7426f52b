"""Proofs of an instance's identity by tokens from Google's metadata server."""

import hmac
import json
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from control_plane.agents.identity import InvalidProof, Proof
from control_plane.fleet.records import InstanceRow, InstanceState, Market, Offering
from control_plane.gcp.google_certificates import ASK_SECONDS_MIN, GoogleCertificates
from control_plane.gcp.instance_identity import GoogleIdentityVerifier
from detcloud.agent.gcp.instance_identity import request_identity
from detcloud.agent.gcp.metadata import GceMetadata
from detcloud.shared.identity_purposes import BOOT_REPORT, proven_cluster
from tests.emulators.gce.metadata import MachineMetadata, metadata_server
from tests.emulators.google_keys import (
    GoogleKeys,
    certificate_server,
    encode_part,
    token_part,
)
from tests.unit.api.adapters import ApiAdapters
from tests.unit.api.cluster import NOW_MS, V1, Cluster, build_cluster, put_instance
from tests.unit.api.exchange import Answer, call

CLUSTER, DIGEST = "detcloud-vision", "d" * 64
AUDIENCE = f"detcloud/{CLUSTER}/{DIGEST}"


class Clock:
    """A clock that a test sets."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def keys() -> GoogleKeys:
    return GoogleKeys()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def machine(keys: GoogleKeys) -> MachineMetadata:
    return MachineMetadata("detcloud-vision-a1b2", keys)


@pytest.fixture
def certificates(keys: GoogleKeys, clock: Clock) -> Iterator[GoogleCertificates]:
    with certificate_server(keys) as url:
        yield GoogleCertificates(url, clock)


@pytest.fixture
def verifier(certificates: GoogleCertificates, machine: MachineMetadata) -> GoogleIdentityVerifier:
    return GoogleIdentityVerifier(CLUSTER, machine.project, machine.account, certificates)


def proof(token: str, purpose: str = "") -> Proof:
    return Proof(DIGEST, {"identity_token": token}, purpose)


def test_metadata_token_proves_the_instances_name(
    verifier: GoogleIdentityVerifier, machine: MachineMetadata
) -> None:
    with metadata_server(machine) as host:
        made = request_identity(CLUSTER, DIGEST, GceMetadata(host))
    assert made.instance_id == machine.name
    assert verifier.verify_proof(Proof(DIGEST, made.fields)).id == machine.name
    # The route's limit for the field.
    assert len(made.fields["identity_token"]) <= 4096


def test_token_is_valid_for_a_single_audience(
    verifier: GoogleIdentityVerifier, machine: MachineMetadata, keys: GoogleKeys
) -> None:
    token = keys.sign(machine.claims(AUDIENCE))
    report = keys.sign(machine.claims(f"detcloud/{proven_cluster(CLUSTER, BOOT_REPORT)}/{DIGEST}"))
    assert verifier.verify_proof(proof(report, BOOT_REPORT)).id == machine.name
    others = (
        proof(token, BOOT_REPORT),
        proof(report),
        replace(proof(token), token_sha256="e" * 64),
        proof(keys.sign(machine.claims(f"detcloud/detcloud-audio/{DIGEST}"))),
        proof(keys.sign({**machine.claims(AUDIENCE), "aud": [AUDIENCE]})),
    )
    for other in others:
        with pytest.raises(InvalidProof, match="issued for another audience"):
            verifier.verify_proof(other)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        # A token of an hour, plus ten seconds of clock skew.
        ({"exp": 1_700_003_600, "iat": 1_700_000_000}, "it has expired"),
        ({"iat": 4_000_000_000, "exp": 4_000_003_600}, "not valid yet"),
        ({"nbf": 4_000_000_000}, "not valid yet"),
        ({"nbf": "soon"}, "not valid yet"),
        ({"iss": "https://accounts.example"}, "was not issued by Google"),
        ({"email": "other@team-project.iam.gserviceaccount.com"}, "service account"),
        ({"email_verified": False}, "service account"),
        ({"google": None}, "format=full"),
        ({"google": {"compute_engine": []}}, "format=full"),
    ],
)
def test_refuses_tokens_with_wrong_claims(
    verifier: GoogleIdentityVerifier,
    machine: MachineMetadata,
    keys: GoogleKeys,
    changes: dict[str, Any],
    expected: str,
) -> None:
    with pytest.raises(InvalidProof, match=expected):
        verifier.verify_proof(proof(keys.sign({**machine.claims(AUDIENCE), **changes})))


@pytest.mark.parametrize(
    "changes", [{"project_id": "elsewhere"}, {"instance_name": ""}, {"instance_name": 7}]
)
def test_refuses_instances_of_foreign_projects(
    verifier: GoogleIdentityVerifier,
    machine: MachineMetadata,
    keys: GoogleKeys,
    changes: dict[str, Any],
) -> None:
    claims = machine.claims(AUDIENCE)
    claims["google"]["compute_engine"] |= changes
    with pytest.raises(InvalidProof, match="this cluster's project"):
        verifier.verify_proof(proof(keys.sign(claims)))


def test_refuses_tokens_of_the_standard_format(
    verifier: GoogleIdentityVerifier, machine: MachineMetadata, keys: GoogleKeys
) -> None:
    with pytest.raises(InvalidProof, match="format=full"):
        verifier.verify_proof(proof(keys.sign(machine.claims(AUDIENCE, full=False))))


def test_refuses_tokens_without_googles_signature(
    verifier: GoogleIdentityVerifier, machine: MachineMetadata, keys: GoogleKeys
) -> None:
    claims = machine.claims(AUDIENCE)
    token = keys.sign(claims)
    head, content, signature = token.split(".")
    unsigned = f"{token_part({'alg': 'none', 'kid': keys.key_id})}.{content}."
    # A MAC with the public certificate as the secret.
    symmetric = f"{token_part({'alg': 'HS256', 'kid': keys.key_id})}.{content}"
    secret = keys.certificates[keys.key_id].encode()
    mac = encode_part(hmac.digest(secret, symmetric.encode(), sha256))
    claims["google"]["compute_engine"]["instance_name"] = "another"
    stranger = GoogleKeys()
    stranger.rotate()
    cases = {
        f"{unsigned}AA": "not signed by RS256",
        f"{symmetric}.{mac}": "not signed by RS256",
        keys.sign(claims, alg="ES256"): "not signed by RS256",
        keys.sign(claims, kid=None): "not signed by RS256",
        keys.sign(claims, kid=["x"]): "not signed by RS256",
        f"{head}.{token_part(claims)}.{signature}": "signature is not Google's",
        stranger.sign(claims, kid=keys.key_id): "signature is not Google's",
        stranger.sign(claims): "not Google's",
        f"{encode_part(b'[]')}.{content}.{signature}": "cannot be decoded",
        # Nested deeper than Python's parser allows, and as long as the route's limit.
        f"{encode_part(b'[' * 1500)}.{content}.{signature}": "cannot be decoded",
        f"{head}.{encode_part(b'[' * 1500)}.{signature}": "cannot be decoded",
        f"{head}.{encode_part(b'nothing')}.{signature}": "cannot be decoded",
    }
    for forged, expected in cases.items():
        with pytest.raises(InvalidProof, match=expected):
            verifier.verify_proof(proof(forged))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"identity_token": "a.b"},
        {"identity_token": "a.b.c", "more": "x"},
        {"identity_token": "a.b.c\n"},
        {"identity_token": ""},
    ],
)
def test_refuses_malformed_proof_fields(
    verifier: GoogleIdentityVerifier, keys: GoogleKeys, fields: dict[str, str]
) -> None:
    with pytest.raises(ValidationError):
        verifier.verify_proof(Proof(DIGEST, fields))
    assert keys.requests == 0


def test_certificates_are_cached_for_googles_max_age(
    verifier: GoogleIdentityVerifier, machine: MachineMetadata, keys: GoogleKeys, clock: Clock
) -> None:
    token = keys.sign(machine.claims(AUDIENCE))
    for seconds, requests in ((0.0, 1), (3599.0, 1), (3600.0, 2), (7199.0, 2)):
        clock.seconds = seconds
        assert verifier.verify_proof(proof(token)).id == machine.name
        assert keys.requests == requests


def test_unknown_keys_cause_few_certificate_requests(
    verifier: GoogleIdentityVerifier, machine: MachineMetadata, keys: GoogleKeys, clock: Clock
) -> None:
    claims = machine.claims(AUDIENCE)
    verifier.verify_proof(proof(keys.sign(claims)))
    keys.rotate()
    clock.seconds = ASK_SECONDS_MIN
    assert verifier.verify_proof(proof(keys.sign(claims))).id == machine.name
    assert keys.requests == 2
    for number in range(20):
        with pytest.raises(InvalidProof, match="not Google's"):
            verifier.verify_proof(proof(keys.sign(claims, kid=f"made-up-{number}")))
    assert keys.requests == 2


def test_withdrawn_key_is_refused(
    verifier: GoogleIdentityVerifier, machine: MachineMetadata, keys: GoogleKeys, clock: Clock
) -> None:
    token = keys.sign(machine.claims(AUDIENCE))
    verifier.verify_proof(proof(token))
    del keys.certificates[keys.key_id]
    clock.seconds = 3600
    with pytest.raises(InvalidProof, match="not Google's"):
        verifier.verify_proof(proof(token))


def test_failed_certificate_request_is_an_os_error_and_is_paced(
    verifier: GoogleIdentityVerifier, machine: MachineMetadata, keys: GoogleKeys, clock: Clock
) -> None:
    keys.status = 500
    token = keys.sign(machine.claims(AUDIENCE))
    for _ in range(3):
        # The second and third proof send no request to Google.
        with pytest.raises(OSError, match="cannot read Google's certificates: status 500"):
            verifier.verify_proof(proof(token))
    assert keys.requests == 1
    keys.status = 200
    clock.seconds = ASK_SECONDS_MIN
    assert verifier.verify_proof(proof(token)).id == machine.name


def test_certificates_without_json_are_an_os_error(
    machine: MachineMetadata, keys: GoogleKeys
) -> None:
    with metadata_server(machine) as host:
        url = f"http://{host}/computeMetadata/v1/instance/name"
        with pytest.raises(OSError, match="cannot read Google's certificates"):
            GoogleCertificates(url).find(keys.key_id)
    assert json.dumps(keys.certificates)


def test_instance_joins_only_with_the_proven_token(
    certificates: GoogleCertificates,
    machine: MachineMetadata,
    keys: GoogleKeys,
    tmp_path: Path,
) -> None:
    """The proof passes through the API to the agent's enrolment."""
    verifier = GoogleIdentityVerifier(
        ApiAdapters.cluster_id, machine.project, machine.account, certificates
    )
    cluster = build_cluster(tmp_path, verifiers={"gcp": verifier})
    offering = Offering("n1/a/spot", "n1-standard-4", "us-central1-a", Market.SPOT, 1)
    for name in (machine.name, "detcloud-vision-other"):
        row = InstanceRow(name, "default", offering, InstanceState.STARTING, NOW_MS, "intent-1")
        row = replace(row, uid=str(machine.numeric_id), zone=machine.zone)
        put_instance(cluster, row, "gcp")
    join_token = "dct_of-the-instance"
    digest = sha256(join_token.encode()).hexdigest()
    identity = keys.sign(machine.claims(f"detcloud/{cluster.services.cluster_id}/{digest}"))
    body = {"resource_pool": "default", "token_sha256": digest, "identity_token": identity}

    def prove(name: str, **fields: str) -> int:
        path = f"{V1}/instances/{name}/identity"
        return call(cluster.app, "PUT", path, content={**body, **fields}).status

    assert prove("detcloud-vision-other") == 403
    assert prove(machine.name, token_sha256="e" * 64) == 403
    assert prove(machine.name, identity_token="nothing") == 422
    assert prove(machine.name) == 200
    slots = [{"id": 0, "type": "cuda", "uuid": "u", "name": "T4"}]
    agent = {"name": machine.name, "resource_pool": "default", "slots": slots}
    assert call(cluster.app, "POST", f"{V1}/agents", token=join_token, content=agent).status == 200
    agent["name"] = "detcloud-vision-other"
    assert call(cluster.app, "POST", f"{V1}/agents", token=join_token, content=agent).status == 403


@pytest.mark.parametrize(
    ("number", "zone", "expected"),
    [
        ("1", "us-central1-a", "has number 1"),
        ("1", "us-central1-f", "has zone us-central1-f"),
        ("", "us-central1-f", "has zone us-central1-f"),
    ],
)
def test_refuses_a_machine_of_the_same_name_that_comes_first(
    certificates: GoogleCertificates,
    machine: MachineMetadata,
    keys: GoogleKeys,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    number: str,
    zone: str,
    expected: str,
) -> None:
    """An editor of the project may create a VM with the name and the service account.

    `number` is the VM's, or "" for the launched machine's number.
    """
    cluster = launched_cluster(certificates, machine, tmp_path, uid=str(machine.numeric_id))
    stranger = replace(machine, numeric_id=int(number or machine.numeric_id), zone=zone)
    answer = prove(cluster, stranger, keys, "dct_of-the-stranger")
    assert answer.status == 403
    assert expected in answer.json["error"]["message"]
    assert "another instance uses the name" in caplog.text
    assert prove(cluster, machine, keys, "dct_of-the-instance").status == 200
    # The stranger cannot report for the instance afterwards, nor prove its own token.
    assert prove(cluster, stranger, keys, "dct_of-the-stranger").status == 403


def test_instance_waits_until_its_number_is_known(
    certificates: GoogleCertificates,
    machine: MachineMetadata,
    keys: GoogleKeys,
    tmp_path: Path,
) -> None:
    cluster = launched_cluster(certificates, machine, tmp_path, uid="")
    answer = prove(cluster, machine, keys, "dct_of-the-instance")
    # The agent retries after 404; a pass records the number.
    assert answer.status == 404
    assert "is not known yet" in answer.json["error"]["message"]
    cluster = launched_cluster(
        certificates, machine, tmp_path / "later", uid=str(machine.numeric_id)
    )
    assert prove(cluster, machine, keys, "dct_of-the-instance").status == 200


@pytest.mark.parametrize("missing", ["instance_id", "zone"])
def test_refuses_tokens_without_number_or_zone(
    verifier: GoogleIdentityVerifier, machine: MachineMetadata, keys: GoogleKeys, missing: str
) -> None:
    claims = machine.claims(AUDIENCE)
    del claims["google"]["compute_engine"][missing]
    with pytest.raises(InvalidProof, match="lacks the number or the zone"):
        verifier.verify_proof(proof(keys.sign(claims)))


def launched_cluster(
    certificates: GoogleCertificates, machine: MachineMetadata, folder: Path, *, uid: str
) -> Cluster:
    """Return a cluster that has launched the machine and recorded the number `uid`."""
    verifier = GoogleIdentityVerifier(
        ApiAdapters.cluster_id, machine.project, machine.account, certificates
    )
    cluster = build_cluster(folder, verifiers={"gcp": verifier})
    offering = Offering("n1/a/spot", "n1-standard-4", "", Market.SPOT, 1)
    row = InstanceRow(machine.name, "default", offering, InstanceState.STARTING, NOW_MS, "intent-1")
    put_instance(cluster, replace(row, uid=uid, zone=machine.zone), "gcp")
    return cluster


def prove(cluster: Cluster, machine: MachineMetadata, keys: GoogleKeys, token: str) -> Answer:
    """Prove the identity of a machine with a join token."""
    digest = sha256(token.encode()).hexdigest()
    signed = keys.sign(machine.claims(f"detcloud/{cluster.services.cluster_id}/{digest}"))
    body = {"resource_pool": "default", "token_sha256": digest, "identity_token": signed}
    path = f"{V1}/instances/{machine.name}/identity"
    return call(cluster.app, "PUT", path, content=body)
