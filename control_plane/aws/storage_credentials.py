"""AWS credentials for a trial's storage: sessions of a role, each limited by a session policy."""

from typing import Any

from control_plane.agents.storage_credentials import SECONDS_MAX, StorageAccess, StorageCredentials
from control_plane.aws.role_sessions import assume_role


class StsCredentialIssuer:
    """The CredentialIssuer of AWS, which uses AWS's token service (STS)."""

    store_type = "s3"

    def __init__(self, client: Any, role: str, key: str = "") -> None:
        """Configure the role and the key.

        Args:
            client: boto3's client of STS.
            role: the ARN of a role with the access of all trials together.
            key: the ARN of the customer's KMS key that encrypts the bucket; "" for no such key.
        """
        self._client = client
        self._role = role
        self._key = key

    def issue_credentials(self, name: str, access: StorageAccess) -> StorageCredentials:
        """Issue an hour's credentials that allow `access` only, for a session with this `name`.

        Raises OSError if AWS issues no credentials.
        """
        policy = session_policy(access, self._key)
        return assume_role(self._client, self._role, name, SECONDS_MAX, policy)


def session_policy(access: StorageAccess, key: str = "") -> dict[str, Any]:
    """Return the policy document of a session that allows `access` only.

    The session may write and abort uploads below the write folders, and read and list below the
    read folders. If `key` is the ARN of a KMS key, the session may also use the key through S3.
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
    """Return the policy statement that allows to use a KMS key, only in requests through S3."""
    return {
        "Effect": "Allow",
        "Action": ["kms:Decrypt", "kms:GenerateDataKey"],
        "Resource": key,
        "Condition": {"StringLike": {"kms:ViaService": "s3.*.amazonaws.com"}},
    }
