"""Proofs of an instance's identity by the agent's signature, against a checking token service."""

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest

from control_plane.agents.identity import InvalidProof, Proof, Signer
from control_plane.aws.instance_identity import AwsIdentityVerifier, _send_request
from detcloud.agent.aws.instance_identity import RoleCredentials, authorization_header
from detcloud.shared.aws_identity import CONTENT_TYPE, REQUEST_BODY
from detcloud.shared.identity_purposes import BOOT_REPORT, proven_cluster
from tests.emulators.ministack import REGION, Ministack

CLUSTER, INSTANCE, DIGEST = "detcloud-vision", "i-0123456789abcdef0", "d" * 64
ROLE, OTHER_ROLE = "detcloud-vision-instance", "detcloud-audio-instance"


@pytest.fixture(scope="module")
def roles(strict_aws: Ministack) -> dict[str, str]:
    """The ARNs of the instance roles of two teams, by role name."""
    principal = {"AWS": "arn:aws:iam::000000000000:root"}
    allows = {"Effect": "Allow", "Principal": principal, "Action": "sts:AssumeRole"}
    trust = json.dumps({"Version": "2012-10-17", "Statement": [allows]})
    iam = strict_aws.client("iam")
    return {
        name: iam.create_role(RoleName=name, AssumeRolePolicyDocument=trust)["Role"]["Arn"]
        for name in (ROLE, OTHER_ROLE)
    }


@pytest.fixture
def verifier(strict_aws: Ministack, roles: Mapping[str, str]) -> AwsIdentityVerifier:
    return AwsIdentityVerifier(CLUSTER, roles[ROLE], strict_aws.url)


def proof(
    aws: Ministack, role: str, session: str = INSTANCE, left_out: str = "", **headers: str
) -> Proof:
    """Return the proof of an instance with a role.

    `headers` replace signed headers, and the header `left_out` is not signed.
    """
    sts = aws.client("sts")
    credentials = sts.assume_role(RoleArn=role, RoleSessionName=session)["Credentials"]
    keys = RoleCredentials(
        credentials["AccessKeyId"], credentials["SecretAccessKey"], credentials["SessionToken"]
    )
    now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    all_headers = {
        "content-type": CONTENT_TYPE,
        "host": urlsplit(aws.url).netloc,
        "x-amz-date": now,
        "x-amz-security-token": keys.session_token,
        "x-detcloud-cluster": CLUSTER,
        "x-detcloud-token": DIGEST,
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    all_headers.pop(left_out, None)
    authorization = authorization_header(all_headers, REQUEST_BODY, keys, REGION)
    fields = {"date": now, "security_token": keys.session_token}
    return Proof(DIGEST, {"authorization": authorization, **fields})


def test_proof_names_the_signing_instance(
    strict_aws: Ministack, verifier: AwsIdentityVerifier, roles: Mapping[str, str]
) -> None:
    assert verifier.verify_proof(proof(strict_aws, roles[ROLE])) == Signer(INSTANCE)


@pytest.mark.parametrize(
    "signed_for", [{"x_detcloud_cluster": "detcloud-audio"}, {"x_detcloud_token": "e" * 64}]
)
def test_refuses_a_proof_for_a_different_cluster_or_token(
    strict_aws: Ministack,
    verifier: AwsIdentityVerifier,
    roles: Mapping[str, str],
    signed_for: dict[str, str],
) -> None:
    with pytest.raises(InvalidProof, match="does not accept"):
        verifier.verify_proof(proof(strict_aws, roles[ROLE], **signed_for))


def test_proof_is_valid_for_a_single_purpose(
    strict_aws: Ministack, verifier: AwsIdentityVerifier, roles: Mapping[str, str]
) -> None:
    signed = proven_cluster(CLUSTER, BOOT_REPORT)
    report = proof(strict_aws, roles[ROLE], x_detcloud_cluster=signed)
    assert verifier.verify_proof(replace(report, purpose=BOOT_REPORT)) == Signer(INSTANCE)
    with pytest.raises(InvalidProof, match="does not accept"):
        verifier.verify_proof(report)
    with pytest.raises(InvalidProof, match="does not accept"):
        verifier.verify_proof(replace(proof(strict_aws, roles[ROLE]), purpose=BOOT_REPORT))


def test_refuses_an_unsigned_digest(
    strict_aws: Ministack, verifier: AwsIdentityVerifier, roles: Mapping[str, str]
) -> None:
    with pytest.raises(InvalidProof, match="does not accept"):
        verifier.verify_proof(replace(proof(strict_aws, roles[ROLE]), token_sha256="e" * 64))


@pytest.mark.parametrize("left_out", ["x-detcloud-cluster", "x-detcloud-token"])
def test_incomplete_signature_is_not_sent_to_aws(
    strict_aws: Ministack, roles: Mapping[str, str], left_out: str
) -> None:
    def send(request: urllib.request.Request) -> bytes:
        raise AssertionError(request)

    verifier = AwsIdentityVerifier(CLUSTER, roles[ROLE], strict_aws.url, send)
    with pytest.raises(InvalidProof, match=f"does not cover {left_out}"):
        verifier.verify_proof(proof(strict_aws, roles[ROLE], left_out=left_out))


def test_refuses_a_foreign_role(
    strict_aws: Ministack, verifier: AwsIdentityVerifier, roles: Mapping[str, str]
) -> None:
    with pytest.raises(InvalidProof, match="not from an instance"):
        verifier.verify_proof(proof(strict_aws, roles[OTHER_ROLE]))


def test_refuses_a_session_without_an_instance_id(
    strict_aws: Ministack, verifier: AwsIdentityVerifier, roles: Mapping[str, str]
) -> None:
    with pytest.raises(InvalidProof, match="not from an instance"):
        verifier.verify_proof(proof(strict_aws, roles[ROLE], session="somebody"))


def test_unavailable_token_service_is_an_os_error(
    strict_aws: Ministack, roles: Mapping[str, str]
) -> None:
    def send(request: urllib.request.Request) -> bytes:
        headers: Any = {}
        raise urllib.error.HTTPError(request.full_url, 503, "down", headers, None)

    verifier = AwsIdentityVerifier(CLUSTER, roles[ROLE], strict_aws.url, send)
    with pytest.raises(OSError, match="down"):
        verifier.verify_proof(proof(strict_aws, roles[ROLE]))


def test_malformed_role_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="not the ARN of a role"):
        AwsIdentityVerifier(CLUSTER, "vision", "https://sts.us-east-1.amazonaws.com")


def test_answer_without_http_is_an_os_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer_once() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(b"SSH-2.0-server\r\n")

        thread = threading.Thread(target=answer_once)
        thread.start()
        request = urllib.request.Request(f"http://127.0.0.1:{listener.getsockname()[1]}/")
        with pytest.raises(OSError, match="BadStatusLine"):
            _send_request(request)
        thread.join()
