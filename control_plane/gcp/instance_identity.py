"""The verifier of instances in Google Cloud, by the identity tokens that Google signs for them.

The audience of a token is made here from what the instance says that it proves, and must be the one
that Google signed; so a token that was made for anything else is refused. What it says of the
instance counts only behind that.
"""

import time
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from control_plane.agents.identity import InvalidProof, Proof
from control_plane.gcp.google_certificates import GoogleCertificates
from control_plane.text_forms import text_form
from detcloud.shared.gcp_identity import token_audience
from detcloud.shared.identity_purposes import proven_cluster

ALGORITHM = "RS256"
ISSUERS = ("https://accounts.google.com", "accounts.google.com")
# Clocks of ours and Google's differ by less.
SKEW_SECONDS_MAX = 10


class GoogleProof(BaseModel):
    """The fields of a proof; docs/agent-protocol.md has them."""

    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True)

    identity_token: Annotated[
        str,
        Field(
            pattern=text_form(
                r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+){2}$", "a token of three parts with dots between"
            )
        ),
    ]


class GoogleIdentityVerifier:
    """Verifies proofs of instances of `project` that have the service account `account` (its
    e-mail), by `certificates`.
    """

    cloud = "Google Cloud"

    def __init__(
        self,
        cluster: str,
        project: str,
        account: str,
        certificates: GoogleCertificates | None = None,
    ) -> None:
        self._cluster = cluster
        self._project = project
        self._account = account
        self._certificates = certificates or GoogleCertificates()

    def verify_proof(self, proof: Proof) -> str:
        """The name of the instance that Google made a proof's token for.

        Raises ValidationError for fields that are not those of GoogleProof, InvalidProof, and
        OSError if Google does not answer.
        """
        token = GoogleProof.model_validate(proof.fields).identity_token
        cluster = proven_cluster(self._cluster, proof.purpose)
        claims = self._signed_claims(token, token_audience(cluster, proof.token_sha256))
        if claims.get("iss") not in ISSUERS:
            raise InvalidProof("the token was not issued by Google")
        if claims.get("email") != self._account or claims.get("email_verified") is not True:
            raise InvalidProof("the token is not of this cluster's service account")
        google = claims.get("google")
        instance = google.get("compute_engine") if isinstance(google, dict) else None
        if not isinstance(instance, dict):
            raise InvalidProof("the token names no instance: it must be made with format=full")
        name = instance.get("instance_name")
        if instance.get("project_id") != self._project or not (name and isinstance(name, str)):
            raise InvalidProof("the token is not from an instance of this cluster's project")
        return name

    def _signed_claims(self, token: str, audience: str) -> Mapping[str, Any]:
        """The claims of a token that Google signed for the audience and that has not expired."""
        # Instances prove themselves once: nobody else waits for this import, a tenth of a second
        # (docs/benchmarks.md: the cold starts).
        from google.auth import jwt
        from google.auth.exceptions import GoogleAuthError

        try:
            header = jwt.decode_header(token)
        except (GoogleAuthError, ValueError, RecursionError):
            raise InvalidProof("the token cannot be decoded") from None
        key = header.get("kid")
        if header.get("alg") != ALGORITHM or not isinstance(key, str):
            raise InvalidProof(f"the token is not signed by {ALGORITHM} with a key that it names")
        certificate = self._certificates.find(key)
        if certificate is None:
            raise InvalidProof("the token is signed with a key that is not Google's")
        try:
            claims: Mapping[str, Any] = jwt.decode(
                token, {key: certificate}, clock_skew_in_seconds=SKEW_SECONDS_MAX
            )
        except (GoogleAuthError, ValueError):
            text = "the token's signature is not Google's, or it has expired or is not valid yet"
            raise InvalidProof(text) from None
        # google-auth looks at `iat` and `exp`; Google's tokens have no such claim today.
        not_before = claims.get("nbf", 0)
        if not isinstance(not_before, int) or not_before > time.time() + SKEW_SECONDS_MAX:
            raise InvalidProof("the token is not valid yet")
        if claims.get("aud") != audience:
            raise InvalidProof("the token was issued for another audience")
        return claims
