"""Identity tokens that say which function it is: the metadata server has Google sign them."""

import urllib3


def fetch_identity_token(audience: str, pool: urllib3.PoolManager | None = None) -> str:
    """Fetch a token that is good for one audience. Raises OSError."""
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
