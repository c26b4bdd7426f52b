"""The keys and tokens that the cluster issues for an allocation, and the request for keys."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detcloud.shared.http import Transport


@dataclass(frozen=True)
class StorageKeys:
    """The temporary AWS keys that the cluster issued for an allocation."""

    key_id: str
    secret: str = field(repr=False)
    session_token: str = field(repr=False)
    expires_ms: int
    """The end of the keys' validity, in milliseconds since the epoch."""

    def to_answer(self) -> dict[str, str | int]:
        """Return the fields of an answer of AWS's container credential service."""
        ends = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.expires_ms / 1000))
        return {
            "AccessKeyId": self.key_id,
            "SecretAccessKey": self.secret,
            "Token": self.session_token,
            "Expiration": ends,
        }


@dataclass(frozen=True)
class StorageToken:
    """The Google access token that the cluster issued for an allocation."""

    access_token: str = field(repr=False)
    expires_ms: int
    """The end of the token's validity, in milliseconds since the epoch."""
    account: str = ""
    """The email address of the token's service account. "" if the cluster does not name it."""

    def to_answer(self) -> dict[str, str | int]:
        """Return the fields of an answer of Google's metadata service, with the seconds left.

        The seconds are 0 for an expired token.
        """
        seconds = max(0, int(self.expires_ms / 1000 - time.time()))
        return {
            "access_token": self.access_token,
            "expires_in": seconds,
            "token_type": "Bearer",
        }


def fetch_keys(client: Transport, agent: str, holder: str) -> StorageKeys | StorageToken:
    """Request keys or a token from the cluster for a holder.

    An allocation's id as holder requests keys for the checkpoint storage. A holder of `data_holder`
    requests keys for the trial's code. Return a StorageToken if the cluster issues a Google token,
    else StorageKeys. Raise ApiError if the cluster refuses, OSError if it does not answer. `agent`
    is the agent's id.
    """
    allocation, _, kind = holder.partition("/")
    path = f"/api/v1/agents/{agent}/{kind or 'storage'}-credentials"
    answer = client.request("POST", path, {"allocation": allocation}, retry=False)
    if "access_token" in answer:
        account = answer.get("account", "")
        return StorageToken(answer["access_token"], answer["expires_ms"], account)
    return StorageKeys(**{name: answer[name] for name in StorageKeys.__dataclass_fields__})
