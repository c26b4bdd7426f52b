"""Sessions of AWS roles for trials: keys that expire, optionally limited by a session policy."""

import json
from collections.abc import Mapping
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError

from control_plane.agents.storage_credentials import StorageCredentials


def assume_role(
    client: Any, role: str, name: str, seconds: int, policy: Mapping[str, Any] | None = None
) -> StorageCredentials:
    """Create a session of a role and return the session's keys.

    Args:
        client: boto3's client of STS.
        role: the ARN of the role.
        name: the name of the session, which AWS shows in its audit logs.
        seconds: the validity of the keys.
        policy: the policy document that limits the session; None for the role's full access.

    Raises:
        OSError: AWS issues no keys or does not answer.
    """
    narrowed = {"Policy": json.dumps(policy, separators=(",", ":"))} if policy else {}
    try:
        issued = client.assume_role(
            RoleArn=role, RoleSessionName=name, DurationSeconds=seconds, **narrowed
        )["Credentials"]
    except (BotoCoreError, ClientError, ResponseParserError) as error:
        raise OSError(f"cannot issue credentials for {name}: {error_reason(error)}") from error
    return StorageCredentials(
        issued["AccessKeyId"],
        issued["SecretAccessKey"],
        issued["SessionToken"],
        int(issued["Expiration"].timestamp() * 1000),
    )


def error_reason(error: Exception) -> str:
    """Return the error code of AWS's response, or the name of the error's type without a code."""
    code = error.response.get("Error", {}).get("Code") if isinstance(error, ClientError) else ""
    return str(code or type(error).__name__)
