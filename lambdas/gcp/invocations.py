"""Invocations of a cluster's function by another function.

The request uses HTTPS and carries an identity token of the caller from the metadata server. Cloud
Run checks the token.
"""

import urllib3

from lambdas.gcp.identity_tokens import fetch_identity_token

# Longer than a function takes to start. The tick does not wait longer, because an invoked function
# continues after the caller has closed the connection.
ANSWER_SECONDS_MAX = 5.0
CONNECT_SECONDS_MAX = 3.0


def invoke_url(url: str, answer_seconds_max: float = ANSWER_SECONDS_MAX) -> None:
    """Send a POST request to the function at `url`, and wait at most `answer_seconds_max`.

    A function that has not answered by then counts as started. Raises OSError if no identity token
    can be fetched, the function cannot be reached, or the status is not 2xx. Redirects are not
    followed and count as errors.
    """
    timeout = urllib3.Timeout(connect=CONNECT_SECONDS_MAX, read=answer_seconds_max)
    with urllib3.PoolManager(retries=False, timeout=timeout) as pool:
        headers = _identity_headers(url, pool)
        try:
            answer = pool.request("POST", url, headers=headers, redirect=False)
        except urllib3.exceptions.ReadTimeoutError:
            # The function is running.
            return
        except urllib3.exceptions.HTTPError as error:
            raise OSError(f"{url} was not invoked: {error}") from error
    if not 200 <= answer.status < 300:
        raise OSError(f"{url} was not invoked: it answered {answer.status}")


def _identity_headers(url: str, pool: urllib3.PoolManager) -> dict[str, str]:
    """Return the header with this function's identity token for `url`.

    Return no headers for a URL without HTTPS, so that no token is sent in plain text. Raises
    OSError if no token can be fetched.
    """
    if not url.startswith("https://"):
        return {}
    try:
        token = fetch_identity_token(url, pool)
    except OSError as error:
        raise OSError(f"{url} was not invoked: {error}") from error
    return {"Authorization": f"Bearer {token}"}
