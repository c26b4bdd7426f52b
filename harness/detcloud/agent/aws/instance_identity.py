"""The proof of an instance of EC2: a request to AWS's token service, signed by the instance.

The request names the digest of the instance's join token and the cluster. The cluster sends it, and
AWS tells the cluster whose signature it is.
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

from detcloud.agent.join_token import IdentityProof
from detcloud.shared.aws_identity import CLUSTER_HEADER, CONTENT_TYPE, REQUEST_BODY, TOKEN_HEADER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from detcloud.agent.aws.metadata import InstanceMetadata

ROLES_PATH = "latest/meta-data/iam/security-credentials/"


@dataclass(frozen=True, slots=True)
class RoleCredentials:
    """Credentials of the instance's role."""

    key_id: str
    secret: str
    session_token: str


def sign_identity(cluster: str, token_sha256: str, metadata: InstanceMetadata) -> IdentityProof:
    """Sign with the keys in the metadata. Raises OSError for metadata without what it takes."""
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
    """Return all headers of a `POST /` at the URL of a service, which `headers` are among, signed
    now.
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
    """The Authorization of a `POST /` to a service: a signature of AWS's version 4.

    The names of the headers are in lower case, and `x-amz-date` is among them.
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
    """Return the credentials of the machine's role. Raises OSError for one without a role."""
    role = read_metadata(metadata, ROLES_PATH).splitlines()[0]
    fields = json.loads(read_metadata(metadata, ROLES_PATH + role))
    return RoleCredentials(fields["AccessKeyId"], fields["SecretAccessKey"], fields["Token"])


def read_metadata(metadata: InstanceMetadata, path: str) -> str:
    """Return the metadata at `path`. Raises OSError where there is none."""
    text = metadata.get(path)
    if not text:
        raise OSError(f"this machine has no {path.removeprefix('latest/meta-data/')}")
    return text
