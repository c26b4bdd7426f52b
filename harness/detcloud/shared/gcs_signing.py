"""The credentials that sign URLs of Google Cloud Storage.

Google's packages load when they are first needed, as in `detcloud.shared.gcs`.
"""

from __future__ import annotations

from typing import Any

_TOKEN_URI = "https://oauth2.googleapis.com/token"
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"


def can_sign(own: Any) -> bool:
    """Whether credentials are a service account's; a person's sign nothing."""
    from google.auth.credentials import Signing

    return isinstance(own, Signing) or hasattr(own, "service_account_email")


def find_signing_credentials(own: Any, auth_request: Any = None) -> Any:
    """Return the credentials that sign URLs for `own`: themselves with a key of their own, or else
    a service account's by the service that signs for it, for which it needs the role of a token
    creator on itself. `auth_request` asks Google, by a new connection if None.
    """
    from google.auth import iam
    from google.auth.credentials import Scoped, Signing
    from google.auth.transport.requests import Request
    from google.oauth2.service_account import Credentials

    if isinstance(own, Signing):
        return own
    if isinstance(own, Scoped):
        # Cloud Run's metadata give a token the scopes asked for; those of storage sign nothing.
        own = own.with_scopes([_SCOPE])
    request = auth_request or Request()
    email = own.service_account_email
    if email == "default":
        # The machine's metadata tell the name with the first token.
        own.refresh(request)
        email = own.service_account_email
    return Credentials(iam.Signer(request, own, email), email, _TOKEN_URI)
