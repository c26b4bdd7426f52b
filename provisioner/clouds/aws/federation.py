"""AWS sessions for a cluster that runs in Google Cloud.

The service assumes an AWS role with an identity token that Google signs, so it stores no AWS key.
"""

from collections.abc import Callable
from typing import Any

from botocore.credentials import (
    AssumeRoleWithWebIdentityCredentialFetcher,
    DeferredRefreshableCredentials,
)
from botocore.exceptions import CredentialRetrievalError

from detcloud.shared.aws import new_session

# A role's trust policy requires this audience, so tokens for other purposes are refused.
AUDIENCE_PREFIX = "detcloud-aws"
PROVIDER = "assume-role-with-web-identity"


def federation_audience(cluster: str) -> str:
    """Return the audience of the identity tokens with which a cluster assumes AWS roles."""
    return f"{AUDIENCE_PREFIX}:{cluster}"


def federated_session(
    role: str, cluster: str, region: str, load_token: Callable[[str], str]
) -> Any:
    """Return a botocore session with temporary credentials of an AWS role; make no call yet.

    The credentials are requested at first use and again before they expire. A call then raises
    CredentialRetrievalError if `load_token` raises OSError; other errors of `load_token`, and
    refusals of AWS's token service, are passed on.

    Args:
        role: the ARN of the role.
        cluster: the cluster's name, for the token's audience and the name of the role session.
        region: the default region of clients.
        load_token: returns an identity token for an audience, or raises OSError.
    """

    def create_client(name: str, **options: Any) -> Any:
        return new_session().create_client(name, region, **options)

    def load_own_token() -> str:
        try:
            return load_token(federation_audience(cluster))
        except OSError as error:
            raise CredentialRetrievalError(provider=PROVIDER, error_msg=str(error)) from None

    fetcher = AssumeRoleWithWebIdentityCredentialFetcher(
        create_client,
        load_own_token,
        role,
        extra_args={"RoleSessionName": f"detcloud-{cluster}"[:64]},
    )
    session = new_session()
    session.set_config_variable("region", region)
    # botocore has no public method to set refreshable credentials.
    session._credentials = DeferredRefreshableCredentials(fetcher.fetch_credentials, PROVIDER)
    return session
