"""The identity token by which an instance of Compute Engine proves who it is.

The instance has its metadata server make one for an audience, which says what it is good for; the
cluster makes the same audience of what it was told, and has Google's signature say the rest.
"""

TOKEN_FIELD = "identity_token"


def token_audience(cluster: str, digest: str) -> str:
    """The audience of a token for the digest of one thing; `cluster` is a `proven_cluster`."""
    return f"detcloud/{cluster}/{digest}"
