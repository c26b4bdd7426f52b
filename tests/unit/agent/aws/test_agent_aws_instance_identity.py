"""An instance signs its proof with the keys of its role, which stay with it."""

import json

import pytest

from detcloud.agent.aws.instance_identity import sign_identity
from detcloud.agent.join_token import IdentityProof

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
    """The metadata that EC2 has of the machine, but for `missing` and `changed`."""

    def __init__(self, missing: str = "", changed: dict[str, str] | None = None) -> None:
        self._missing = missing
        self._values = METADATA | (changed or {})

    def get(self, path: str) -> str | None:
        return self._values.get(path) if path != self._missing else None


def proof(missing: str = "", changed: dict[str, str] | None = None) -> IdentityProof:
    return sign_identity("detcloud-vision", DIGEST, Metadata(missing, changed))


def test_the_proof_has_the_fields_of_the_protocol_and_no_secret() -> None:
    made = proof()
    assert made.instance_id == "i-0123456789abcdef0"
    assert set(made.fields) == {"authorization", "date", "security_token"}
    assert "x-detcloud-cluster;x-detcloud-token" in made.fields["authorization"]
    assert "/eu-central-1/sts/aws4_request" in made.fields["authorization"]
    assert made.fields["security_token"] == "session"
    assert "hush" not in json.dumps(dict(made.fields))


@pytest.mark.parametrize(
    ("missing", "named"),
    [("latest/meta-data/placement/region", "placement/region"), (ROLE, "security-credentials")],
)
def test_metadata_that_are_not_there_yet_are_named(missing: str, named: str) -> None:
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
