"""Sessions with AWS for a service of Google Cloud: a role is assumed by an identity token that
Google signs for the service, so that there is no key of AWS's.
"""

from collections.abc import Callable
from typing import Any

from botocore.credentials import (
    AssumeRoleWithWebIdentityCredentialFetcher,
    DeferredRefreshableCredentials,
)
from botocore.exceptions import CredentialRetrievalError

from detcloud.shared.aws import new_session

# The audience that the trust of a role asks of a token, so that none made for another thing serves.
AUDIENCE_PREFIX = "detcloud-aws"
PROVIDER = "assume-role-with-web-identity"


def federation_audience(cluster: str) -> str:
    """Return the audience of the tokens by which a cluster assumes roles."""
    return f"{AUDIENCE_PREFIX}:{cluster}"


def federated_session(
    role: str, cluster: str, region: str, load_token: Callable[[str], str]
) -> Any:
    """Return a session with the keys of `role` (its ARN), which are asked for at first use and
    again before their end. `load_token` makes an identity token for an audience, or raises OSError.
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
    # botocore has no call for credentials that refresh themselves.
    session._credentials = DeferredRefreshableCredentials(fetcher.fetch_credentials, PROVIDER)
    return session
