"""The credentials that sign URLs of Google Cloud Storage.

Google's packages are imported at the first use, as in `detcloud.shared.gcs`.
"""

from __future__ import annotations

from typing import Any

_TOKEN_URI = "https://oauth2.googleapis.com/token"
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"


def can_sign(own: Any) -> bool:
    """Whether credentials can sign URLs: a service account's can, a person's cannot.

    Nothing is sent. Whether Google allows the account to sign is not checked.
    """
    from google.auth.credentials import Signing

    return isinstance(own, Signing) or hasattr(own, "service_account_email")


def find_signing_credentials(own: Any, auth_request: Any = None) -> Any:
    """Return credentials that sign URLs for the credentials `own`, which must fulfil `can_sign`.

    Credentials with a private key are returned unchanged. Otherwise Google's IAM service signs for
    the service account, which needs the role of a token creator on itself. This call may request a
    token and the account's name from Google; the credentials then have the token. Each signature
    sends a request. Errors are those of Google's packages, untranslated. `auth_request` sends
    requests to Google; None means a new connection.
    """
    from google.auth import iam
    from google.auth.credentials import Scoped, Signing
    from google.auth.transport.requests import Request
    from google.oauth2.service_account import Credentials

    if isinstance(own, Signing):
        return own
    if isinstance(own, Scoped):
        # Cloud Run's metadata issue tokens with the requested scopes. Storage scopes cannot sign.
        own = own.with_scopes([_SCOPE])
    request = auth_request or Request()
    email = own.service_account_email
    if email == "default":
        # The machine's metadata contain the account's name only with the first token.
        own.refresh(request)
        email = own.service_account_email
    return Credentials(iam.Signer(request, own, email), email, _TOKEN_URI)
