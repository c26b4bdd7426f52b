"""Access tokens of Google's service accounts, either with the account's full access or limited by a
Credential Access Boundary.

https://cloud.google.com/iam/docs/downscoping-short-lived-credentials
"""

import os
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import urllib3

from control_plane.agents.storage_credentials import SECONDS_MAX, StorageToken

IAM_ENDPOINT = "https://iamcredentials.googleapis.com"
TOKEN_ENDPOINT = "https://sts.googleapis.com"
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
ANSWER_SECONDS_MAX = 10.0

_GRANT = "urn:ietf:params:oauth:grant-type:token-exchange"
_ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"


class AccountTokens:
    """An issuer of access tokens of service accounts."""

    def __init__(
        self,
        find_credentials: Callable[[], Any] | None = None,
        *,
        iam_endpoint: str | None = None,
        token_endpoint: str | None = None,
    ) -> None:
        """Create an issuer. Credentials are only looked up for the first token.

        Args:
            find_credentials: returns the google-auth credentials that may create tokens of the
                accounts. The result is cached; after an error, the next token calls it again. None
                stands for the environment's credentials.
            iam_endpoint: the URL of the IAM Credentials API. Default: DETCLOUD_IAM_ENDPOINT in the
                environment, else Google's.
            token_endpoint: the URL of the Security Token Service. Default: DETCLOUD_STS_ENDPOINT in
                the environment, else Google's.
        """
        environment = os.environ
        self._find_credentials = find_credentials or _environment_credentials
        iam = iam_endpoint or environment.get("DETCLOUD_IAM_ENDPOINT") or IAM_ENDPOINT
        tokens = token_endpoint or environment.get("DETCLOUD_STS_ENDPOINT") or TOKEN_ENDPOINT
        self._accounts_url = f"{iam}/v1/projects/-/serviceAccounts"
        self._token_url = f"{tokens}/v1/token"

    def issue_token(
        self,
        account: str,
        name: str,
        *,
        seconds: int = SECONDS_MAX,
        boundary: Mapping[str, Any] | None = None,
    ) -> StorageToken:
        """Issue an access token of a service account.

        Args:
            account: the e-mail address of the service account.
            name: the purpose of the token, for error messages.
            seconds: the requested validity in seconds. A token with a boundary may expire earlier.
            boundary: the Credential Access Boundary that limits the token; None for full access.

        Raises:
            OSError: Google does not issue the token, or the credentials are missing.
        """
        # Imported here, so that functions that issue no token start faster (docs/benchmarks.md:
        # cold starts).
        from google.auth.exceptions import GoogleAuthError
        from google.auth.impersonated_credentials import Credentials
        from google.oauth2.sts import Client

        try:
            whole = Credentials(
                self._own_credentials,
                account,
                [SCOPE],
                lifetime=seconds,
                iam_endpoint_override=f"{self._accounts_url}/{account}:generateAccessToken",
            )
            whole.refresh(self._request)
            token = str(whole.token)
            if boundary is not None:
                answer = Client(self._token_url).exchange_token(
                    self._request,
                    _GRANT,
                    token,
                    _ACCESS_TOKEN,
                    requested_token_type=_ACCESS_TOKEN,
                    additional_options=boundary,
                )
                token = str(answer["access_token"])
                # Without `expires_in`, the limited token expires with the original token.
                seconds = min(seconds, int(answer.get("expires_in") or seconds))
        except (GoogleAuthError, KeyError, ValueError) as error:
            raise OSError(f"cannot issue a token for {name}: {_reason(error)}") from error
        return StorageToken(token, (int(time.time()) + seconds) * 1000, account)

    @cached_property
    def _own_credentials(self) -> Any:
        return self._find_credentials()

    @cached_property
    def _request(self) -> Any:
        from google.auth.transport.urllib3 import Request

        return Request(urllib3.PoolManager(retries=False, timeout=ANSWER_SECONDS_MAX))


def _environment_credentials() -> Any:
    from google.auth import default

    credentials, _ = default(scopes=(SCOPE,))
    return credentials


def _reason(error: Exception) -> str:
    """Return the first 300 characters of an error's text as a single line.

    Return the name of the error's type if the error has no text.
    """
    text = " ".join(str(part) for part in error.args) or type(error).__name__
    return " ".join(text.split())[:300]
