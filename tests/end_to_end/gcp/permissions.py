"""The permissions that a cluster's accounts needed, compared with the stack's grants."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from infra.gcp.names import TRIAL_ACCOUNTS
from infra.gcp.policies import Grant, list_grants
from tests.emulators.google_permissions import Use

if TYPE_CHECKING:
    from tests.emulators.deployment_gcp import GcpDeployment

# Permissions that Google asks for in places that no emulator has.
NOT_ASKED_FOR_HERE: Final = {
    # The functions' key in this test signs locally: tests/unit/gcp/test_gcp_signed_urls.py.
    "iam.serviceAccounts.signBlob",
    # Cloud Run checks the first when a function is called, and Google's own services use the
    # second.
    # Only a database that refuses the usual form of checks needs transactions.
    "datastore.databases.get",
    "run.routes.invoke",
    "eventarc.events.receiveEvent",
}
# The account of the image build, which belongs to Cloud Build.
BUILD: Final = "build"

_DATABASE: Final = re.compile(r'resource\.name == "([^"]+)"')
_FOLDER: Final = re.compile(r'resource\.name\.startsWith\("([^"]+)"\)')
_NAMED: Final = re.compile(
    r'\(resource\.type != "compute\.googleapis\.com/\w+" \|\| '
    r'resource\.name\.extract\("/(\w+)/\{name\}"\)\.startsWith\("([^"]+)"\)\)'
)


def refused_uses(deployment: GcpDeployment) -> list[Use]:
    """Return the uses by the cluster's accounts that Google would have refused."""
    grants = _grants(deployment)
    return [
        use for use in _all_uses(deployment) if not any(_allows(grant, use) for grant in grants)
    ]


def idle_permissions(deployment: GcpDeployment) -> set[tuple[str, str, str]]:
    """Return the granted but unused permissions, with account and place."""
    uses = _all_uses(deployment)
    return {
        (grant.account, permission, grant.place.name)
        for grant in _grants(deployment)
        if grant.account != BUILD
        for permission in set(grant.permissions) - NOT_ASKED_FOR_HERE
        if not any(use.permission == permission and _shows(grant, use) for use in uses)
    }


def _grants(deployment: GcpDeployment) -> list[Grant]:
    names = deployment.names
    own = list_grants(names, (names.region,), logs_instances=False)
    return own + deployment.access.list_grants(names)


def _all_uses(deployment: GcpDeployment) -> set[Use]:
    """Return the recorded uses, and the uses of trials' tokens."""
    record, tokens = deployment.permissions, deployment.tokens
    found = set()
    for action, bucket, name in tokens.used.copy():
        permission, place = f"storage.objects.{action}", f"projects/_/buckets/{bucket}"
        if bucket in record.buckets:
            found.add(Use("storage", permission, "bucket", record.buckets[bucket]))
        else:
            resource = place if action == "list" else f"{place}/objects/{name}"
            found.add(Use("data", permission, "project", "", resource))
    for account in ("storage", *TRIAL_ACCOUNTS):
        if any(
            text.startswith(f"{deployment.names.account_id(account)}@") for text in tokens.accounts
        ):
            found.add(Use("api", "iam.serviceAccounts.getAccessToken", "account", account))
    return found | record.uses.copy()


def _shows(grant: Grant, use: Use) -> bool:
    """Return whether a use proves that a grant is needed.

    Permissions on rows count for all functions, since chance decides which function creates or
    deletes a row.
    """
    account = use.account if grant.role == "rows" else grant.account
    return _allows(replace(grant, account=account), use)


def _allows(grant: Grant, use: Use) -> bool:
    """Return whether a grant covers a use."""
    return (
        grant.account == use.account
        and use.permission in grant.permissions
        and (grant.place.kind, grant.place.name) == (use.kind, use.place)
        and all(
            any(_holds(alternative, use.resource) for alternative in _alternatives(term))
            for term in _terms(grant.condition)
        )
    )


def _terms(condition: str) -> Iterable[str]:
    return condition.split(" && ") if condition else ()


def _alternatives(term: str) -> Iterable[str]:
    """Split a term into alternatives, unless brackets enclose the term."""
    return [term] if term.startswith("(") else term.split(" || ")


def _holds(term: str, resource: str) -> bool:
    if match := _DATABASE.fullmatch(term):
        return resource == match[1]
    if match := _FOLDER.fullmatch(term):
        return resource.startswith(match[1])
    match = _NAMED.fullmatch(term)
    assert match, f"a condition that this fake cannot evaluate: {term}"
    folder, _, name = resource.partition("/")
    return folder != match[1] or name.startswith(match[2])
