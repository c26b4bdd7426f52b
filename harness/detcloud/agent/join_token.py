"""The join token of an instance of a cloud, which the instance makes itself and proves.

The cluster gets the token's digest, and a proof of the instance's identity that covers it, made
with the help of the cloud. The token lies in a file that only the agent's user reads. Every agent
sends the proof again, which changes nothing.
"""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from detcloud.shared.http import ApiError, Transport, Unreachable, backoff_seconds
from detcloud.shared.tokens import mint_token

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path


class IdentityRefused(Exception):
    """The cluster does not let this instance in, and asking again would not change that."""


@dataclass(frozen=True, slots=True)
class IdentityProof:
    """A proof of this instance's identity (docs/agent-protocol.md has the fields by cloud)."""

    instance_id: str
    fields: Mapping[str, str]


def obtain_join_token(
    path: Path,
    url: str,
    pool: str,
    make_proof: Callable[[str], IdentityProof],
    log_line: Callable[[str], None],
) -> str:
    """The instance's join token, once the cluster accepts it. Raises IdentityRefused.

    The token is in the file at `path`, which is made with a new one if need be. `make_proof` takes
    the token's digest, and raises OSError where the cloud does not help for now.
    """
    token = path.read_text(encoding="utf-8").strip() if path.exists() else ""
    if not token:
        token = mint_token()
        _write_token(path, token)
    digest = hashlib.sha256(token.encode()).hexdigest()
    failures = 0
    while True:
        try:
            _send_proof(url, pool, digest, make_proof(digest))
        except ApiError as error:
            if error.status in (401, 403, 422):
                raise IdentityRefused(error.message) from error
            log_line(f"the cluster does not know this instance yet, trying again: {error.message}")
        except (Unreachable, OSError) as error:
            log_line(f"this instance could not prove its identity, trying again: {error}")
        else:
            return token
        failures += 1
        time.sleep(backoff_seconds(failures))


def _write_token(path: Path, token: str) -> None:
    """Write the file whole, for the agent's user alone, so that it survives a crash."""
    partial = path.with_name(f"{path.name}.partial")
    partial.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with os.fdopen(os.open(partial, flags, 0o600), "w", encoding="utf-8") as file:
        file.write(token)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def _send_proof(url: str, pool: str, digest: str, proof: IdentityProof) -> None:
    body = {"resource_pool": pool, "token_sha256": digest, **proof.fields}
    client = Transport(url, None)
    try:
        client.request("PUT", f"/api/v1/instances/{proof.instance_id}/identity", body, retry=False)
    finally:
        client.close()
