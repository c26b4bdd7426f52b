"""The proof by which an instance of EC2 gets the cluster to accept its join token.

The instance makes the token itself, signs a request to AWS's token service that names the token's
digest and the cluster, and hands the cluster the signature; AWS tells the cluster whose it is. The
token lies in a file that only the agent's user reads. Every agent sends the proof again, which
changes nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from detcloud.shared.aws_identity import CLUSTER_HEADER, CONTENT_TYPE, REQUEST_BODY, TOKEN_HEADER
from detcloud.shared.http import ApiError, Transport, Unreachable, backoff_seconds
from detcloud.shared.tokens import mint_token

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from detcloud.agent.aws.metadata import InstanceMetadata

ROLES_PATH = "latest/meta-data/iam/security-credentials/"


class IdentityRefused(Exception):
    """The cluster does not let this instance in, and asking again would not change that."""


@dataclass(frozen=True, slots=True)
class RoleCredentials:
    """Credentials of the instance's role."""

    key_id: str
    secret: str
    session_token: str


def obtain_join_token(
    path: Path,
    url: str,
    cluster: str,
    pool: str,
    metadata: InstanceMetadata,
    log_line: Callable[[str], None],
) -> str:
    """The instance's join token, once the cluster accepts it. Raises IdentityRefused.

    The token is in the file at `path`, which is made with a new one if need be.
    """
    token = path.read_text(encoding="utf-8").strip() if path.exists() else ""
    if not token:
        token = mint_token()
        _write_token(path, token)
    digest = hashlib.sha256(token.encode()).hexdigest()
    failures = 0
    while True:
        try:
            _prove_identity(url, cluster, pool, digest, metadata)
        except ApiError as error:
            if error.status in (401, 403, 422):
                raise IdentityRefused(error.message) from error
            log_line(f"the cluster does not know this instance yet, trying again: {error.message}")
        except (Unreachable, OSError) as error:
            log_line(f"this instance could not prove who it is, trying again: {error}")
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


def _prove_identity(
    url: str, cluster: str, pool: str, digest: str, metadata: InstanceMetadata
) -> None:
    instance = _read_metadata(metadata, "latest/meta-data/instance-id")
    region = _read_metadata(metadata, "latest/meta-data/placement/region")
    service = os.environ.get("AWS_ENDPOINT_URL_STS") or f"https://sts.{region}.amazonaws.com"
    now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    credentials = _role_credentials(metadata)
    headers = {
        "content-type": CONTENT_TYPE,
        "host": urlsplit(service).netloc,
        "x-amz-date": now,
        "x-amz-security-token": credentials.session_token,
        CLUSTER_HEADER: cluster,
        TOKEN_HEADER: digest,
    }
    body = {
        "resource_pool": pool,
        "token_sha256": digest,
        "authorization": authorization_header(headers, REQUEST_BODY, credentials, region),
        "date": now,
        "security_token": credentials.session_token,
    }
    client = Transport(url, None)
    try:
        client.request("PUT", f"/api/v1/instances/{instance}/identity", body, retry=False)
    finally:
        client.close()


def authorization_header(
    headers: dict[str, str], body: bytes, credentials: RoleCredentials, region: str
) -> str:
    """The Authorization of a `POST /` to the token service: a signature of AWS's version 4.

    The names of the headers are in lower case, and `x-amz-date` is among them.
    """
    names = ";".join(sorted(headers))
    lines = "".join(f"{name}:{headers[name].strip()}\n" for name in sorted(headers))
    request = f"POST\n/\n\n{lines}\n{names}\n{hashlib.sha256(body).hexdigest()}"
    now = headers["x-amz-date"]
    scope = f"{now[:8]}/{region}/sts/aws4_request"
    digest = hashlib.sha256(request.encode()).hexdigest()
    key = f"AWS4{credentials.secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    text = f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{digest}"
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    holder = f"Credential={credentials.key_id}/{scope}"
    return f"AWS4-HMAC-SHA256 {holder}, SignedHeaders={names}, Signature={signature}"


def _role_credentials(metadata: InstanceMetadata) -> RoleCredentials:
    role = _read_metadata(metadata, ROLES_PATH).splitlines()[0]
    fields = json.loads(_read_metadata(metadata, ROLES_PATH + role))
    return RoleCredentials(fields["AccessKeyId"], fields["SecretAccessKey"], fields["Token"])


def _read_metadata(metadata: InstanceMetadata, path: str) -> str:
    text = metadata.get(path)
    if not text:
        raise OSError(f"this machine has no {path.removeprefix('latest/meta-data/')}")
    return text
