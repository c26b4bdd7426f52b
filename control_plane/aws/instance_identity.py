"""The verifier of instances in AWS, by a GetCallerIdentity request that the instance has signed.

The verifier sends the request to AWS's token service (STS), which returns the role and the id of
the instance. The verifier builds the request itself: only the signature and its parameters are from
the proof. STS therefore rejects a signature that was made for another request.
"""

import re
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from control_plane.agents.identity import InvalidProof, Proof, Signer
from control_plane.text_forms import PRINTABLE_TEXT, text_form
from detcloud.shared.aws_identity import (
    CLUSTER_HEADER,
    CONTENT_TYPE,
    REQUEST_BODY,
    TOKEN_HEADER,
)
from detcloud.shared.identity_purposes import proven_cluster

SIGNED_HEADERS = ("content-type", "host", CLUSTER_HEADER, TOKEN_HEADER, "x-amz-date")
ANSWER_SECONDS_MAX = 5.0
ANSWER_BYTES_MAX = 64 * 1024

_SIGNED_HEADERS_FIELD = re.compile(r"SignedHeaders=([a-z0-9;-]{1,400})")
_ARN = re.compile(
    rb"<Arn>arn:(aws[a-z-]*):sts::(\d{12}):assumed-role/([\w+=,.@-]+)/(i-[0-9a-f]+)</Arn>"
)
_ROLE = re.compile(r"arn:(aws[a-z-]*):iam::(\d{12}):role/(?:[\w+=,.@-]+/)*([\w+=,.@-]+)")

Send = Callable[[urllib.request.Request], bytes]
"""Sends a request and returns the body of the response. Raises OSError, of which HTTPError is a
subclass.
"""
# Only printable characters, so that no line break ends a header.
HeaderText = Annotated[str, Field(pattern=PRINTABLE_TEXT, max_length=4096)]


class AwsProof(BaseModel):
    """The fields of a proof, as documented in docs/agent-protocol.md."""

    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True)

    authorization: HeaderText
    date: Annotated[
        str, Field(pattern=text_form(r"^[0-9]{8}T[0-9]{6}Z$", "a time like 20260131T235959Z"))
    ]
    security_token: HeaderText


class AwsIdentityVerifier:
    """The IdentityVerifier of EC2 instances with a given role."""

    cloud = "AWS"

    def __init__(self, cluster: str, role: str, url: str, send: Send | None = None) -> None:
        """Create a verifier.

        Args:
            cluster: the id of the cluster, which proofs must name.
            role: the ARN of the role of the instances.
            url: the URL of AWS's token service.
            send: sends requests; None stands for HTTP without proxies and redirects.

        Raises:
            ValueError: `role` is not the ARN of a role.
        """
        match = _ROLE.fullmatch(role)
        if match is None:
            raise ValueError(f"{role!r} is not the ARN of a role")
        self._role = tuple(part.encode() for part in match.groups())
        self._cluster = cluster
        self._url = url
        self._send = send or _send_request

    def verify_proof(self, proof: Proof) -> Signer:
        """Verify a proof by a request to AWS, and return the instance that signed.

        EC2 never gives an instance's id twice, so the signer has only the id. The id is the name of
        the session for which EC2 assumed the role; nobody else may assume the role.

        Raises:
            pydantic.ValidationError: the fields do not have the form of AwsProof.
            InvalidProof: the signature does not cover all of SIGNED_HEADERS, AWS rejects the
                signature with HTTP 400 or 403, or the signer is not an instance with the role.
            OSError: AWS does not answer, or answers with another status of an error.
        """
        fields = AwsProof.model_validate(proof.fields)
        field = _SIGNED_HEADERS_FIELD.search(fields.authorization)
        signed = set(field[1].split(";")) if field else set()
        if missing := [name for name in SIGNED_HEADERS if name not in signed]:
            raise InvalidProof(f"the signature does not cover {', '.join(missing)}")
        try:
            answer = self._send(self._request(proof, fields))
        except urllib.error.HTTPError as error:
            if error.code in (400, 403):
                raise InvalidProof("AWS does not accept the signature") from None
            raise
        arn = _ARN.search(answer)
        if arn is None or arn.groups()[:3] != self._role:
            raise InvalidProof("the signature is not from an instance of this cluster")
        return Signer(arn[4].decode())

    def _request(self, proof: Proof, fields: AwsProof) -> urllib.request.Request:
        """Build the request that the instance must have signed, with the proof's signature."""
        headers = {
            "Content-Type": CONTENT_TYPE,
            "Host": urllib.parse.urlsplit(self._url).netloc,
            CLUSTER_HEADER: proven_cluster(self._cluster, proof.purpose),
            TOKEN_HEADER: proof.token_sha256,
            "X-Amz-Date": fields.date,
            "X-Amz-Security-Token": fields.security_token,
            "Authorization": fields.authorization,
        }
        return urllib.request.Request(f"{self._url}/", REQUEST_BODY, headers, method="POST")


def _send_request(request: urllib.request.Request) -> bytes:
    """Send a request and return at most ANSWER_BYTES_MAX bytes of the response's body.

    Raises HTTPError for a status other than success, redirects included, and other OSErrors.
    """
    # Proxies and redirects are not used, because the response decides which instances are admitted.
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}),
        urllib.request.HTTPSHandler(context=ssl.create_default_context()),
        _NoRedirects,
    )
    try:
        with opener.open(request, timeout=ANSWER_SECONDS_MAX) as answer:
            content: bytes = answer.read(ANSWER_BYTES_MAX)
            return content
    except HTTPException as error:
        raise OSError(f"the answer cannot be read: {type(error).__name__}") from None


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A handler that follows no redirect: each redirect raises HTTPError."""

    def redirect_request(self, *_: object, **__: object) -> None:
        return None
