"""Google Cloud credentials of a cluster on own machines, from the server's environment.

The credentials are Google's application default credentials. The server stores no credentials.
"""

import os
from typing import Any

from google.auth import credentials, default, impersonated_credentials

from provisioner.clouds.gcp.federation import IAM_ENDPOINT, SCOPE


class OwnCredentials(credentials.Credentials):
    """The environment's credentials, or credentials of an impersonated service account.

    No call is made and no file is read before the first refresh. A refresh without credentials in
    the environment raises a GoogleAuthError, and the next refresh tries again.
    DETCLOUD_IAM_ENDPOINT replaces the address of Google's IAM.

    Args:
        account: the e-mail address of the service account. "" for the environment's own
            credentials.
    """

    def __init__(self, account: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._account = account
        self._inner: Any = None

    def refresh(self, request: Any) -> None:
        """Get a new token. Raises GoogleAuthError."""
        if self._inner is None:
            self._inner = self._load()
        self._inner.refresh(request)
        self.token, self.expiry = self._inner.token, self._inner.expiry

    def _load(self) -> Any:
        """Load the environment's credentials, and impersonate the account, if any."""
        own, _ = default(scopes=(SCOPE,))
        if not self._account:
            return own
        endpoint = os.environ.get("DETCLOUD_IAM_ENDPOINT") or IAM_ENDPOINT
        path = f"v1/projects/-/serviceAccounts/{self._account}:generateAccessToken"
        return impersonated_credentials.Credentials(
            own, self._account, [SCOPE], iam_endpoint_override=f"{endpoint}/{path}"
        )
