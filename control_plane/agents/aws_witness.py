"""The witness of instances in AWS: its token service, asked with the instance's own signature.

The request is put together here, from what must be in it; of the proof come only the signature and
what goes with it. So a signature that was made for anything else fits nothing.
"""

import re
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable

from control_plane.agents.identity import Proof, ProofRefused
from detcloud.agent.aws_identity import BODY, CLUSTER_HEADER, CONTENT_TYPE, TOKEN_HEADER

SIGNED = ("content-type", "host", CLUSTER_HEADER, TOKEN_HEADER, "x-amz-date")
ANSWER_SECONDS_MAX = 5.0
ANSWER_BYTES_MAX = 64 * 1024

_SIGNED_HEADERS = re.compile(r"SignedHeaders=([a-z0-9;-]{1,400})")
_ARN = re.compile(
    rb"<Arn>arn:(aws[a-z-]*):sts::(\d{12}):assumed-role/([\w+=,.@-]+)/(i-[0-9a-f]+)</Arn>"
)
_ROLE = re.compile(r"arn:(aws[a-z-]*):iam::(\d{12}):role/(?:[\w+=,.@-]+/)*([\w+=,.@-]+)")

Send = Callable[[urllib.request.Request], bytes]


class AwsWitness:
    """`role` is the ARN of the cluster's instances' role, `url` the token service of its region."""

    def __init__(self, cluster: str, role: str, url: str, send: Send | None = None) -> None:
        found = _ROLE.fullmatch(role)
        if found is None:
            raise ValueError(f"{role!r} is no ARN of a role")
        self._role = tuple(part.encode() for part in found.groups())
        self._cluster = cluster
        self._url = url
        self._send = send or _sent

    def instance_of(self, proof: Proof) -> str:
        """See Witness."""
        listed = _SIGNED_HEADERS.search(proof.authorization)
        signed = set(listed[1].split(";")) if listed else set()
        if missing := [name for name in SIGNED if name not in signed]:
            raise ProofRefused(f"the signature does not cover {', '.join(missing)}")
        try:
            answer = self._send(self._request(proof))
        except urllib.error.HTTPError as error:
            if error.code in (400, 403):
                raise ProofRefused("AWS does not accept the signature") from None
            raise
        found = _ARN.search(answer)
        if found is None or found.groups()[:3] != self._role:
            raise ProofRefused("the signature is not one of an instance of this cluster")
        return found[4].decode()

    def _request(self, proof: Proof) -> urllib.request.Request:
        headers = {
            "Content-Type": CONTENT_TYPE,
            "Host": urllib.parse.urlsplit(self._url).netloc,
            CLUSTER_HEADER: self._cluster,
            TOKEN_HEADER: proof.token_sha256,
            "X-Amz-Date": proof.date,
            "X-Amz-Security-Token": proof.security_token,
            "Authorization": proof.authorization,
        }
        return urllib.request.Request(f"{self._url}/", BODY, headers, method="POST")


def _sent(request: urllib.request.Request) -> bytes:
    # No proxy and no redirect: the answer decides who is let in.
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}),
        urllib.request.HTTPSHandler(context=ssl.create_default_context()),
        _NoRedirects,
    )
    with opener.open(request, timeout=ANSWER_SECONDS_MAX) as answer:
        content: bytes = answer.read(ANSWER_BYTES_MAX)
        return content


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object, **__: object) -> None:
        return None
