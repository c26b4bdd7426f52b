"""Keys of AWS for a trial's storage: sessions of one role, each with a policy of its own."""

import json
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from control_plane.agents.storage_access import SECONDS_MAX, Access, StorageCredentials


class StsVendor:
    """`client` is boto3's of the token service; `role` the ARN of what a trial may be at most."""

    def __init__(self, client: Any, role: str) -> None:
        self._client = client
        self._role = role

    def vend(self, name: str, access: Access) -> StorageCredentials:
        """See Vendor."""
        try:
            given = self._client.assume_role(
                RoleArn=self._role,
                RoleSessionName=name,
                DurationSeconds=SECONDS_MAX,
                Policy=json.dumps(access.policy(), separators=(",", ":")),
            )["Credentials"]
        except (BotoCoreError, ClientError) as error:
            raise OSError(f"no keys for {name}: {type(error).__name__}") from error
        return StorageCredentials(
            given["AccessKeyId"],
            given["SecretAccessKey"],
            given["SessionToken"],
            int(given["Expiration"].timestamp() * 1000),
        )
