"""Google's credentials for a trial's storage: access tokens of one service account, each narrowed
by a Credential Access Boundary to the trial's own places.
"""

import json
from collections.abc import Callable
from typing import Any

from control_plane.agents.storage_credentials import StorageAccess, StorageToken
from control_plane.gcp.account_tokens import AccountTokens


class DownscopedTokenIssuer:
    """Issues tokens of the service account `account` (its e-mail), which may do all that any trial
    may do. The other parameters are those of AccountTokens.
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
        self._account = account
        self._tokens = AccountTokens(
            find_credentials, iam_endpoint=iam_endpoint, token_endpoint=token_endpoint
        )

    def issue_credentials(self, name: str, access: StorageAccess) -> StorageToken:
        """Issue a token of the access, which is called `name` in its conditions; OSError if Google
        does not issue it.
        """
        boundary = access_boundary(access, name)
        return self._tokens.issue_token(self._account, name, boundary=boundary)


def access_boundary(access: StorageAccess, title: str) -> dict[str, Any]:
    """The boundary of a token that has this access and no other.

    Roles that create and that view are the most that its account's own may be used for.
    """
    rules = []
    for place in access.writes:
        writes = name_condition(access.bucket, place)
        rules.append(boundary_rule(access.bucket, "roles/storage.objectCreator", title, writes))
    for place in access.reads:
        condition = f"{name_condition(access.bucket, place)} || {list_condition(place)}"
        rules.append(boundary_rule(access.bucket, "roles/storage.objectViewer", title, condition))
    return boundary_of(rules)


def boundary_of(rules: list[dict[str, Any]]) -> dict[str, Any]:
    """The boundary that allows what any of the rules does."""
    return {"accessBoundary": {"accessBoundaryRules": rules}}


def boundary_rule(bucket: str, role: str, title: str, condition: str = "") -> dict[str, Any]:
    """A rule that allows what a role does in a bucket, where the condition holds, if there is
    one.
    """
    rule: dict[str, Any] = {
        "availableResource": f"//storage.googleapis.com/projects/_/buckets/{bucket}",
        "availablePermissions": [f"inRole:{role}"],
    }
    if condition:
        rule["availabilityCondition"] = {"title": title, "expression": condition}
    return rule


def name_condition(bucket: str, folder: str) -> str:
    """The condition that an object is in a folder of a bucket."""
    objects = f"projects/_/buckets/{bucket}/objects"
    return f"resource.name.startsWith({_text(f'{objects}/{folder}/')})"


def list_condition(folder: str) -> str:
    """The condition that what is listed is in a folder, with the slash behind the folder: one that
    only begins alike is another trial's.
    """
    prefix = "api.getAttribute('storage.googleapis.com/objectListPrefix', '')"
    return f"{prefix}.startsWith({_text(f'{folder}/')})"


def _text(text: str) -> str:
    """Quote any text as a string of the condition language (CEL)."""
    return json.dumps(text, ensure_ascii=False)
