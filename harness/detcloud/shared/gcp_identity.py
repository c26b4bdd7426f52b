"""The identity token by which a Compute Engine instance proves its identity.

The instance requests the token from its metadata server for an audience, which limits the token's
use. The cluster computes the same audience and verifies Google's signature.
"""

TOKEN_FIELD = "identity_token"


def token_audience(cluster: str, digest: str) -> str:
    """Return the audience of a token that proves a digest to a cluster.

    The text is `detcloud/CLUSTER/DIGEST`. `cluster` is a result of `proven_cluster`: the cluster's
    id with the purpose of the proof. Nothing is checked or requested.
    """
    return f"detcloud/{cluster}/{digest}"
