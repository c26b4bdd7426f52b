"""The proof of a Compute Engine instance: an identity token that Google signs for the instance.

The token's audience names the cluster, the purpose and the digest of the instance's join token. A
token is therefore useless for another cluster or purpose.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcloud.agent.identity_proof import IdentityProof
from detcloud.shared.gcp_identity import TOKEN_FIELD, token_audience

if TYPE_CHECKING:
    from detcloud.agent.gcp.metadata import GceMetadata

IDENTITY_PATH = "instance/service-accounts/default/identity"


def request_identity(cluster: str, digest: str, metadata: GceMetadata) -> IdentityProof:
    """Request an identity token for the cluster and digest, and return the instance's proof.

    Raise OSError if the metadata server does not answer or does not issue a token.
    """
    name = metadata.require("instance/name")
    audience = token_audience(cluster, digest)
    # Only the full format contains the instance's identity.
    token = metadata.require(IDENTITY_PATH, audience=audience, format="full")
    return IdentityProof(name, {TOKEN_FIELD: token.strip()})
