"""Google's credentials for a trial's storage: access tokens of a service account, each limited by a
Credential Access Boundary to the trial's own folders.
"""

import json
from collections.abc import Callable
from typing import Any

from control_plane.agents.storage_credentials import StorageAccess, StorageToken
from control_plane.gcp.account_tokens import AccountTokens


class DownscopedTokenIssuer:
    """The CredentialIssuer of Google Cloud, with tokens of a single service account."""

    store_type = "gcs"

    def __init__(
        self,
        account: str,
        find_credentials: Callable[[], Any] | None = None,
        *,
        iam_endpoint: str | None = None,
        token_endpoint: str | None = None,
    ) -> None:
        """Create an issuer. AccountTokens describes the other parameters.

        Args:
            account: the e-mail address of an account with the access of all trials together.
        """
        self._account = account
        self._tokens = AccountTokens(
            find_credentials, iam_endpoint=iam_endpoint, token_endpoint=token_endpoint
        )

    def issue_credentials(self, name: str, access: StorageAccess) -> StorageToken:
        """Issue an hour's token that allows `access` only. `name` is the title of its conditions.

        Raises OSError if Google does not issue the token.
        """
        boundary = access_boundary(access, name)
        return self._tokens.issue_token(self._account, name, boundary=boundary)


def access_boundary(access: StorageAccess, title: str) -> dict[str, Any]:
    """Return the boundary of a token that allows `access` only; `title` is the conditions' title.

    The token may create objects in the write folders, but not replace, read or list objects there,
    and read and list the read folders. The token can do neither unless the account itself may. The
    folders must have the form that `name_condition` needs.
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
    """Return the boundary that allows a request if any of the rules allows the request."""
    return {"accessBoundary": {"accessBoundaryRules": rules}}


def boundary_rule(bucket: str, role: str, title: str, condition: str = "") -> dict[str, Any]:
    """Return a rule that allows the permissions of a role in a bucket.

    Args:
        role: the name of the role, such as roles/storage.objectViewer.
        title: the title of the condition.
        condition: the CEL expression under which the rule holds; "" means always.
    """
    rule: dict[str, Any] = {
        "availableResource": f"//storage.googleapis.com/projects/_/buckets/{bucket}",
        "availablePermissions": [f"inRole:{role}"],
    }
    if condition:
        rule["availabilityCondition"] = {"title": title, "expression": condition}
    return rule


def name_condition(bucket: str, folder: str) -> str:
    """Return the CEL condition that a requested object is in a folder of a bucket.

    The folder must not be empty, and must not begin or end with a slash. An empty folder does not
    stand for the whole bucket: the condition then holds for almost no object.
    """
    objects = f"projects/_/buckets/{bucket}/objects"
    return f"resource.name.startsWith({_text(f'{objects}/{folder}/')})"


def list_condition(folder: str) -> str:
    """Return the CEL condition that the prefix of a listing is in a folder.

    The condition includes the slash after the folder, because a folder with the same beginning may
    belong to another trial. The folder has the form that `name_condition` needs.
    """
    prefix = "api.getAttribute('storage.googleapis.com/objectListPrefix', '')"
    return f"{prefix}.startsWith({_text(f'{folder}/')})"


def _text(text: str) -> str:
    """Return any text as a quoted string of the condition language (CEL)."""
    return json.dumps(text, ensure_ascii=False)
