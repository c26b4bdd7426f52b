"""The proof of an EC2 instance: a request to AWS's token service, signed by the instance.

The request names the digest of the instance's join token and the cluster. The cluster sends the
request to AWS. The answer names the role and instance that signed the request.
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

from detcloud.agent.identity_proof import IdentityProof
from detcloud.shared.aws_identity import CLUSTER_HEADER, CONTENT_TYPE, REQUEST_BODY, TOKEN_HEADER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from detcloud.agent.aws.metadata import InstanceMetadata

PREFIX = "latest/meta-data/"
ROLES_PATH = f"{PREFIX}iam/security-credentials/"


# No slots: boot reports import this module under Python 3.8 too.
@dataclass(frozen=True)
class RoleCredentials:
    """The temporary credentials of the instance's role."""

    key_id: str
    secret: str
    session_token: str


def sign_identity(cluster: str, token_sha256: str, metadata: InstanceMetadata) -> IdentityProof:
    """Sign a GetCallerIdentity request for the cluster and digest, and return the proof.

    Nothing is sent to AWS's token service. The keys, the instance id and the region are read from
    `metadata`. Raise OSError if the metadata lack any of them or cannot be read.
    """
    instance = read_metadata(metadata, "latest/meta-data/instance-id")
    region = read_metadata(metadata, "latest/meta-data/placement/region")
    service = os.environ.get("AWS_ENDPOINT_URL_STS") or f"https://sts.{region}.amazonaws.com"
    own = {"content-type": CONTENT_TYPE, CLUSTER_HEADER: cluster, TOKEN_HEADER: token_sha256}
    headers = signed_headers(own, service, REQUEST_BODY, role_credentials(metadata), region, "sts")
    fields = {
        "authorization": headers["authorization"],
        "date": headers["x-amz-date"],
        "security_token": headers["x-amz-security-token"],
    }
    return IdentityProof(instance, fields)


def signed_headers(
    headers: Mapping[str, str],
    url: str,
    body: bytes,
    credentials: RoleCredentials,
    region: str,
    service: str,
) -> dict[str, str]:
    """Sign a `POST /` request to an AWS service, and return all headers of the request.

    The result contains `headers` and adds `host`, `x-amz-date` with the current time,
    `x-amz-security-token` and `authorization`. The names of `headers` must be in lower case.
    `service` is AWS's short name, such as `sts`. The argument `headers` is not changed.
    """
    signed = {
        **headers,
        "host": urlsplit(url).netloc,
        "x-amz-date": time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()),
        "x-amz-security-token": credentials.session_token,
    }
    authorization = authorization_header(signed, body, credentials, region, service)
    return {**signed, "authorization": authorization}


def authorization_header(
    headers: dict[str, str],
    body: bytes,
    credentials: RoleCredentials,
    region: str,
    service: str = "sts",
) -> str:
    """Return the Authorization header of a `POST /` request: an AWS signature of version 4.

    `headers` are all headers to sign. Their names must be in lower case, and `x-amz-date` must be
    present. Raise KeyError without `x-amz-date`.
    """
    names = ";".join(sorted(headers))
    lines = "".join(f"{name}:{headers[name].strip()}\n" for name in sorted(headers))
    request = f"POST\n/\n\n{lines}\n{names}\n{hashlib.sha256(body).hexdigest()}"
    now = headers["x-amz-date"]
    scope = f"{now[:8]}/{region}/{service}/aws4_request"
    digest = hashlib.sha256(request.encode()).hexdigest()
    key = f"AWS4{credentials.secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    text = f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{digest}"
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    holder = f"Credential={credentials.key_id}/{scope}"
    return f"AWS4-HMAC-SHA256 {holder}, SignedHeaders={names}, Signature={signature}"


def role_credentials(metadata: InstanceMetadata) -> RoleCredentials:
    """Read the credentials of the instance's role from the metadata.

    Raise OSError if the instance has no role, the metadata cannot be read, or the answer contains
    no credentials. EC2 sends an answer without credentials while it cannot assume the role.
    """
    role = read_metadata(metadata, ROLES_PATH).splitlines()[0]
    text = read_metadata(metadata, ROLES_PATH + role)
    try:
        fields = json.loads(text)
        keys = [fields[name] for name in ("AccessKeyId", "SecretAccessKey", "Token")]
    except (ValueError, KeyError, TypeError):
        keys = []
    if not (keys and all(isinstance(key, str) for key in keys)):
        # The answer may contain a secret, so the message does not repeat the answer.
        raise OSError(f"this machine's metadata have no usable keys of role {role}")
    return RoleCredentials(*keys)


def read_metadata(metadata: InstanceMetadata, path: str) -> str:
    """Read the metadata at a path.

    Raise OSError if the path does not exist or is empty, or if the service does not answer.
    """
    text = metadata.get(path)
    if not text:
        raise OSError(f"this machine has no {path.replace(PREFIX, '', 1)}")
    return text
