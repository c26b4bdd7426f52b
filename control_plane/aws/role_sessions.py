"""Sessions of AWS's roles, for trials: keys that end, each with a policy of its own at most."""

import json
from collections.abc import Mapping
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from control_plane.agents.storage_credentials import StorageCredentials


def assume_role(
    client: Any, role: str, name: str, seconds: int, policy: Mapping[str, Any] | None = None
) -> StorageCredentials:
    """Return the keys of a session called `name`, which `policy` narrows, if there is one. `client`
    is boto3's client of STS. Raises OSError if AWS issues none.
    """
    narrowed = {"Policy": json.dumps(policy, separators=(",", ":"))} if policy else {}
    try:
        issued = client.assume_role(
            RoleArn=role, RoleSessionName=name, DurationSeconds=seconds, **narrowed
        )["Credentials"]
    except (BotoCoreError, ClientError) as error:
        raise OSError(f"cannot issue credentials for {name}: {error_reason(error)}") from error
    return StorageCredentials(
        issued["AccessKeyId"],
        issued["SecretAccessKey"],
        issued["SessionToken"],
        int(issued["Expiration"].timestamp() * 1000),
    )


def error_reason(error: Exception) -> str:
    """The code of AWS's answer, or the kind of the error where there was no answer."""
    code = error.response.get("Error", {}).get("Code") if isinstance(error, ClientError) else ""
    return str(code or type(error).__name__)
