"""Google's credentials for a trial's storage: access tokens of one service account, each narrowed
by a Credential Access Boundary to the trial's own places.

https://cloud.google.com/iam/docs/downscoping-short-lived-credentials
"""

import json
import os
import time
from collections.abc import Callable
from functools import cached_property
from typing import Any

import urllib3

from control_plane.agents.storage_credentials import SECONDS_MAX, StorageAccess, StorageToken

IAM_ENDPOINT = "https://iamcredentials.googleapis.com"
TOKEN_ENDPOINT = "https://sts.googleapis.com"
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
ANSWER_SECONDS_MAX = 10.0

_GRANT = "urn:ietf:params:oauth:grant-type:token-exchange"
_ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"


class DownscopedTokenIssuer:
    """Issues tokens of the service account `account` (its e-mail), which may do all that any trial
    may do.

    `find_credentials` returns google-auth credentials that may create tokens of that account: those
    of the environment unless it is given.
    """

    store_type = "gcs"

    def __init__(
        self,
        account: str,
        find_credentials: Callable[[], Any] | None = None,
        *,
        iam_endpoint: str | None = None,
        token_endpoint: str | None = None,
    ) -> None:
        environment = os.environ
        self._account = account
        self._find_credentials = find_credentials or _environment_credentials
        iam = iam_endpoint or environment.get("DETCLOUD_IAM_ENDPOINT") or IAM_ENDPOINT
        tokens = token_endpoint or environment.get("DETCLOUD_STS_ENDPOINT") or TOKEN_ENDPOINT
        self._iam_url = f"{iam}/v1/projects/-/serviceAccounts/{account}:generateAccessToken"
        self._token_url = f"{tokens}/v1/token"

    def issue_credentials(self, name: str, access: StorageAccess) -> StorageToken:
        """Issue a token of the access, which is called `name` in its conditions; OSError if Google
        does not issue it.
        """
        # Functions that issue none do not wait for these imports (docs/benchmarks.md: cold starts).
        from google.auth.exceptions import GoogleAuthError
        from google.auth.impersonated_credentials import Credentials
        from google.oauth2.sts import Client

        try:
            whole = Credentials(
                self._own_credentials,
                self._account,
                [SCOPE],
                lifetime=SECONDS_MAX,
                iam_endpoint_override=self._iam_url,
            )
            whole.refresh(self._request)
            answer = Client(self._token_url).exchange_token(
                self._request,
                _GRANT,
                whole.token,
                _ACCESS_TOKEN,
                requested_token_type=_ACCESS_TOKEN,
                additional_options=access_boundary(access, name),
            )
            token = str(answer["access_token"])
            # It ends with the token that it was made of, where the answer does not say.
            seconds = int(answer.get("expires_in") or SECONDS_MAX)
        except (GoogleAuthError, KeyError, ValueError) as error:
            raise OSError(f"cannot issue a token for {name}: {_reason(error)}") from error
        return StorageToken(token, (int(time.time()) + min(seconds, SECONDS_MAX)) * 1000)

    @cached_property
    def _own_credentials(self) -> Any:
        return self._find_credentials()

    @cached_property
    def _request(self) -> Any:
        from google.auth.transport.urllib3 import Request

        return Request(urllib3.PoolManager(retries=False, timeout=ANSWER_SECONDS_MAX))


def access_boundary(access: StorageAccess, title: str) -> dict[str, Any]:
    """The boundary of a token that has this access and no other.

    Roles that create and that view are the most that its account's own may be used for. Listing is
    allowed of a prefix that lies in a folder, with the slash behind the folder: one that only
    begins alike is another trial's.
    """
    objects = f"projects/_/buckets/{access.bucket}/objects"
    rules = []
    for place in access.writes:
        writes = f"resource.name.startsWith({_text(f'{objects}/{place}/')})"
        rules.append(_rule(access.bucket, "roles/storage.objectCreator", writes, title))
    for place in access.reads:
        reads = f"resource.name.startsWith({_text(f'{objects}/{place}/')})"
        prefix = "api.getAttribute('storage.googleapis.com/objectListPrefix', '')"
        lists = f"{prefix}.startsWith({_text(f'{place}/')})"
        condition = f"{reads} || {lists}"
        rules.append(_rule(access.bucket, "roles/storage.objectViewer", condition, title))
    return {"accessBoundary": {"accessBoundaryRules": rules}}


def _rule(bucket: str, role: str, condition: str, title: str) -> dict[str, Any]:
    return {
        "availableResource": f"//storage.googleapis.com/projects/_/buckets/{bucket}",
        "availablePermissions": [f"inRole:{role}"],
        "availabilityCondition": {"title": title, "expression": condition},
    }


def _text(text: str) -> str:
    """Quote any text as a string of the condition language (CEL)."""
    return json.dumps(text, ensure_ascii=False)


def _environment_credentials() -> Any:
    from google.auth import default

    credentials, _ = default(scopes=(SCOPE,))
    return credentials


def _reason(error: Exception) -> str:
    """The beginning of Google's answer, on one line."""
    text = " ".join(str(part) for part in error.args) or type(error).__name__
    return " ".join(text.split())[:300]
