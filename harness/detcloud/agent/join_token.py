"""The join token of a cloud instance. The instance generates the token and proves its identity.

The cluster receives the token's digest and a proof of identity that covers the digest and that the
cloud verifies. The token is stored in a file that only the agent's user can read. Each start of an
agent sends the proof again, which has no further effect.
"""

from __future__ import annotations

import hashlib
import os
import time
from typing import TYPE_CHECKING

from detcloud.shared.http import ApiError, Transport, Unreachable, backoff_seconds
from detcloud.shared.tokens import mint_token

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from detcloud.agent.identity_proof import IdentityProof


class IdentityRefused(Exception):
    """The cluster refuses this instance permanently, so that a repeated proof is useless."""


def obtain_join_token(
    path: Path,
    url: str,
    pool: str,
    make_proof: Callable[[str], IdentityProof],
    log_line: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
    connect: Callable[[str, None], Transport] = Transport,
) -> str:
    """Return the instance's join token after the cluster has accepted the proof.

    Read the token from the file at `path`. If the file is missing or empty, write a new token.
    Retry without end, with a log line and a pause per failure, while the cluster or the cloud does
    not answer or the cluster does not know the instance yet.

    Args:
        path: the file of the token.
        url: the cluster's API.
        pool: the resource pool to join.
        make_proof: returns a proof for the token's SHA-256, or raises OSError for a retry.
        log_line: writes to the agent's log.
        sleep: pauses for a number of seconds.
        connect: opens a connection to the API, without a token.

    Raises:
        IdentityRefused: the cluster answered 401, 403 or 422.
        OSError: the file cannot be read or written.
    """
    token = path.read_text(encoding="utf-8").strip() if path.exists() else ""
    if not token:
        token = mint_token()
        _write_token(path, token)
    digest = hashlib.sha256(token.encode()).hexdigest()
    failures = 0
    while True:
        try:
            _send_proof(connect(url, None), pool, digest, make_proof(digest))
        except ApiError as error:
            if error.status in (401, 403, 422):
                raise IdentityRefused(error.message) from error
            log_line(f"the cluster does not know this instance yet, trying again: {error.message}")
        except (Unreachable, OSError) as error:
            log_line(f"this instance could not prove its identity, trying again: {error}")
        else:
            return token
        failures += 1
        sleep(backoff_seconds(failures))


def _write_token(path: Path, token: str) -> None:
    """Replace the file atomically with a synced file that only the agent's user can read."""
    partial = path.with_name(f"{path.name}.partial")
    partial.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with os.fdopen(os.open(partial, flags, 0o600), "w", encoding="utf-8") as file:
        file.write(token)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def _send_proof(client: Transport, pool: str, digest: str, proof: IdentityProof) -> None:
    body = {"resource_pool": pool, "token_sha256": digest, **proof.fields}
    try:
        client.request("PUT", f"/api/v1/instances/{proof.instance_id}/identity", body, retry=False)
    finally:
        client.close()
