"""Invocations of functions by others of the cluster: over HTTPS, with an identity token that says
who calls, which the metadata server makes and Cloud Run checks.
"""

import urllib3

from lambdas.gcp.identity_tokens import fetch_identity_token

# Longer than a function takes to start. No tick waits for more: an invoked function goes on when
# nobody waits for it.
ANSWER_SECONDS_MAX = 5.0
CONNECT_SECONDS_MAX = 3.0


def invoke_url(url: str) -> None:
    """Call the function at `url`, and wait only until it has begun.

    Raises OSError where it refuses or cannot be reached.
    """
    timeout = urllib3.Timeout(connect=CONNECT_SECONDS_MAX, read=ANSWER_SECONDS_MAX)
    with urllib3.PoolManager(retries=False, timeout=timeout) as pool:
        headers = _identity_headers(url, pool)
        try:
            answer = pool.request("POST", url, headers=headers, redirect=False)
        except urllib3.exceptions.ReadTimeoutError:
            # It is at work.
            return
        except urllib3.exceptions.HTTPError as error:
            raise OSError(f"{url} was not invoked: {error}") from error
    if not 200 <= answer.status < 300:
        raise OSError(f"{url} was not invoked: it answered {answer.status}")


def _identity_headers(url: str, pool: urllib3.PoolManager) -> dict[str, str]:
    """Return the headers that prove who calls, none for an address of this machine without TLS,
    over which no token is sent.
    """
    if not url.startswith("https://"):
        return {}
    try:
        token = fetch_identity_token(url, pool)
    except OSError as error:
        raise OSError(f"{url} was not invoked: {error}") from error
    return {"Authorization": f"Bearer {token}"}
