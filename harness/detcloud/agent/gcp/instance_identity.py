"""The proof of a Compute Engine instance: an identity token that Google signs for it alone.

The token's audience names the cluster, what it is for and the digest of the instance's join token,
so that it proves one thing to one cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcloud.agent.join_token import IdentityProof
from detcloud.shared.gcp_identity import TOKEN_FIELD, token_audience

if TYPE_CHECKING:
    from detcloud.agent.gcp.metadata import GceMetadata

IDENTITY_PATH = "instance/service-accounts/default/identity"


def request_identity(cluster: str, digest: str, metadata: GceMetadata) -> IdentityProof:
    """Request a token for the digest. Raises OSError if the metadata server does not issue one."""
    name = metadata.require("instance/name")
    audience = token_audience(cluster, digest)
    # The full format alone says which instance it is of.
    token = metadata.require(IDENTITY_PATH, audience=audience, format="full")
    return IdentityProof(name, {TOKEN_FIELD: token.strip()})
