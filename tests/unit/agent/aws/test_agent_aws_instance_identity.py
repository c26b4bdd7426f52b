"""An EC2 instance signs its identity with the secret keys of its role."""

import json

import pytest

from detcloud.agent.aws.instance_identity import sign_identity
from detcloud.agent.identity_proof import IdentityProof

DIGEST = "d" * 64
ROLE = "latest/meta-data/iam/security-credentials/"
METADATA = {
    "latest/meta-data/instance-id": "i-0123456789abcdef0",
    "latest/meta-data/placement/region": "eu-central-1",
    ROLE: "detcloud-vision-instance\n",
    f"{ROLE}detcloud-vision-instance": json.dumps(
        {"AccessKeyId": "AKID", "SecretAccessKey": "hush", "Token": "session"}
    ),
}


class Metadata:
    """EC2 metadata of the machine, without the path `missing` and with the values of `changed`."""

    def __init__(self, missing: str = "", changed: dict[str, str] | None = None) -> None:
        self._missing = missing
        self._values = METADATA | (changed or {})

    def get(self, path: str) -> str | None:
        return self._values.get(path) if path != self._missing else None


def proof(missing: str = "", changed: dict[str, str] | None = None) -> IdentityProof:
    return sign_identity("detcloud-vision", DIGEST, Metadata(missing, changed))


def test_identity_proof_has_all_fields_and_no_secret() -> None:
    signed = proof()
    assert signed.instance_id == "i-0123456789abcdef0"
    assert set(signed.fields) == {"authorization", "date", "security_token"}
    assert "x-detcloud-cluster;x-detcloud-token" in signed.fields["authorization"]
    assert "/eu-central-1/sts/aws4_request" in signed.fields["authorization"]
    assert signed.fields["security_token"] == "session"
    assert "hush" not in json.dumps(dict(signed.fields))


@pytest.mark.parametrize(
    ("missing", "named"),
    [("latest/meta-data/placement/region", "placement/region"), (ROLE, "security-credentials")],
)
def test_missing_metadata_are_named(missing: str, named: str) -> None:
    with pytest.raises(OSError, match=named):
        proof(missing)


@pytest.mark.parametrize(
    "answer",
    [
        # EC2's answer if the role cannot be assumed, for example after the role was replaced.
        '{"Code": "AssumeRoleUnauthorizedAccess", "Message": "EC2 cannot assume the role"}',
        '{"AccessKeyId": null, "SecretAccessKey": "hush", "Token": "session"}',
        "[]",
        "hush",
    ],
)
def test_malformed_role_credentials_are_an_os_error_without_secret(answer: str) -> None:
    with pytest.raises(OSError, match="no usable keys of role detcloud-vision-instance") as caught:
        proof(changed={f"{ROLE}detcloud-vision-instance": answer})
    assert "hush" not in str(caught.value)
    assert caught.value.__cause__ is None
