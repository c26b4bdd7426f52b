"""AWS credentials for a trial's storage: sessions of one role, each narrowed by its own policy."""

from typing import Any

from control_plane.agents.storage_credentials import SECONDS_MAX, StorageAccess, StorageCredentials
from control_plane.aws.role_sessions import assume_role


class StsCredentialIssuer:
    """Issues credentials with AWS's token service (STS).

    `client` is boto3's client of it; `role` is the ARN of a role that allows all that any trial may
    do; `key` is that of a key of one's own which encrypts the bucket, where there is one.
    """

    store_type = "s3"

    def __init__(self, client: Any, role: str, key: str = "") -> None:
        self._client = client
        self._role = role
        self._key = key

    def issue_credentials(self, name: str, access: StorageAccess) -> StorageCredentials:
        """Issue credentials for a session called `name`; OSError if AWS does not issue them."""
        policy = session_policy(access, self._key)
        return assume_role(self._client, self._role, name, SECONDS_MAX, policy)


def session_policy(access: StorageAccess, key: str = "") -> dict[str, Any]:
    """The policy document of a session that has this access and no other, to objects that S3
    encrypts with `key` where there is one.
    """
    objects = f"arn:aws:s3:::{access.bucket}"
    reads = [f"{place}/*" for place in access.reads]
    return {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Action": ["s3:PutObject", "s3:AbortMultipartUpload"],
                "Resource": [f"{objects}/{place}/*" for place in access.writes],
            },
            {
                "Effect": "Allow",
                "Action": "s3:GetObject",
                "Resource": [f"{objects}/{place}" for place in reads],
            },
            {
                "Effect": "Allow",
                "Action": "s3:ListBucket",
                "Resource": objects,
                "Condition": {"StringLike": {"s3:prefix": reads}},
            },
            *([_key_statement(key)] if key else []),
        ],
    }


def _key_statement(key: str) -> dict[str, Any]:
    """The statement that lets a session use the key through S3, for the objects of its access."""
    return {
        "Effect": "Allow",
        "Action": ["kms:Decrypt", "kms:GenerateDataKey"],
        "Resource": key,
        "Condition": {"StringLike": {"kms:ViaService": "s3.*.amazonaws.com"}},
    }
