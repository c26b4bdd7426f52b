"""Identity tokens of the running function, which Google signs for the metadata server."""

import urllib3


def fetch_identity_token(audience: str, pool: urllib3.PoolManager | None = None) -> str:
    """Fetch an identity token of this function from the metadata server.

    Send a request each time: no token is cached. Raises OSError if no token can be fetched.

    Args:
        audience: the only receiver that accepts the token.
        pool: the connections to use. None for new connections with a timeout of 3 s.
    """
    from google.auth.compute_engine import IDTokenCredentials
    from google.auth.exceptions import GoogleAuthError
    from google.auth.transport.urllib3 import Request

    request = Request(pool or urllib3.PoolManager(retries=False, timeout=3.0))
    try:
        made = IDTokenCredentials(request, audience, use_metadata_identity_endpoint=True)
        made.refresh(request)
    except GoogleAuthError as error:
        raise OSError(f"no identity token for {audience}: {error}") from error
    return str(made.token)
