"""The verifier of instances in Google Cloud, by the identity tokens that Google signs.

The verifier computes the expected audience from the digest that the instance claims to prove. A
token with another signed audience, made for another purpose, is rejected. The token's claims about
the instance count only after this check.
"""

import time
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from control_plane.agents.identity import InvalidProof, Proof, Signer
from control_plane.gcp.google_certificates import GoogleCertificates
from control_plane.text_forms import text_form
from detcloud.shared.gcp_identity import token_audience
from detcloud.shared.identity_purposes import proven_cluster

ALGORITHM = "RS256"
ISSUERS = ("https://accounts.google.com", "accounts.google.com")
# The largest tolerated difference between the clocks of this machine and of Google.
SKEW_SECONDS_MAX = 10


class GoogleProof(BaseModel):
    """The fields of a proof, as documented in docs/agent-protocol.md."""

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
    """The IdentityVerifier of instances of a Google Cloud project."""

    cloud = "Google Cloud"

    def __init__(
        self,
        cluster: str,
        project: str,
        account: str,
        certificates: GoogleCertificates | None = None,
    ) -> None:
        """Create a verifier.

        Args:
            cluster: the id of the cluster, which proofs must name.
            project: the id of the project of the instances.
            account: the e-mail address of the service account of the instances.
            certificates: Google's certificates; None stands for a new cache.
        """
        self._cluster = cluster
        self._project = project
        self._account = account
        self._certificates = certificates or GoogleCertificates()

    def verify_proof(self, proof: Proof) -> Signer:
        """Verify a proof and return the instance that Google issued the token for.

        Names are unique within a zone and may be used again. Therefore the signer also has the
        instance's zone and Google's number of the instance.

        Raises:
            pydantic.ValidationError: the fields do not have the form of GoogleProof.
            InvalidProof: the token has no valid signature of Google, has expired, has another
                audience or service account, or is not from an instance of the project.
            OSError: Google's certificates cannot be fetched.
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
        number, zone = instance.get("instance_id"), instance.get("zone")
        if not (number and isinstance(number, str) and zone and isinstance(zone, str)):
            raise InvalidProof("the token lacks the number or the zone of the instance")
        return Signer(name, number, zone.rpartition("/")[2])

    def _signed_claims(self, token: str, audience: str) -> Mapping[str, Any]:
        """Return the claims of a token that Google signed for `audience` and that is valid now.

        Raises InvalidProof for any other token. Raises OSError if Google's certificates cannot be
        fetched.
        """
        # Imported here, because the import takes a tenth of a second and only proofs of instances
        # need the module (docs/benchmarks.md: the cold starts).
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
        # google-auth checks only `iat` and `exp`. Google's tokens have no `nbf` today.
        not_before = claims.get("nbf", 0)
        if not isinstance(not_before, int) or not_before > time.time() + SKEW_SECONDS_MAX:
            raise InvalidProof("the token is not valid yet")
        if claims.get("aud") != audience:
            raise InvalidProof("the token was issued for another audience")
        return claims
