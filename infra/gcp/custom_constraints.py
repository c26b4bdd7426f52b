"""Reads the custom constraints of an organization that are enforced for a project.

A custom constraint is a condition on resources in Google's language CEL, which the check cannot
evaluate. The check names the constraints that concern the services of a cluster.
"""

from collections.abc import Iterator
from typing import Any, Final

from infra.findings import Finding, Level, Unknown, read_fact
from infra.gcp.account_facts import CustomConstraint, CustomConstraints
from infra.gcp.google_api import UNAUTHORIZED, GoogleApi, GoogleError, read_pages

PREFIX: Final = "custom."
_MANAGER: Final = "https://cloudresourcemanager.googleapis.com/v1/projects"
_POLICIES: Final = "https://orgpolicy.googleapis.com/v2"
_ORGANIZATION: Final = "organizations/"


def read_custom_constraints(project: str, api: GoogleApi) -> CustomConstraints | Unknown:
    """Read the custom constraints that are enforced for a project.

    The policies of the project, the folders and the organization are listed. A list that Google
    refuses is noted in the result. Return no constraints for a project without an organization, and
    Unknown if the project's place in the hierarchy cannot be read.
    """
    try:
        ancestors = _ancestors(project, api)
    except GoogleError as error:
        return _unknown("resourcemanager.projects.get", error)
    organization = next((name for name in ancestors if name.startswith(_ORGANIZATION)), "")
    if not organization:
        return CustomConstraints()
    names: dict[str, None] = {}
    unread: dict[str, Unknown] = {}
    for ancestor in ancestors:
        try:
            names |= dict.fromkeys(_custom_names(ancestor, api))
        except GoogleError as error:
            unread[ancestor] = _unknown(f"orgpolicy.policies.list on {ancestor}", error)
    enforced = []
    for name in names:
        try:
            if _is_enforced(project, name, api):
                enforced.append(_describe(organization, name, api))
        except GoogleError as error:
            unread[name] = _unknown("orgpolicy.policy.get", error)
    return CustomConstraints(tuple(enforced), unread)


def check_custom_constraints(
    custom: CustomConstraints, services: tuple[str, ...]
) -> Iterator[Finding]:
    """Yield a warning for each custom constraint that may refuse a resource of the cluster.

    Constraints on types of other services than `services`, which are names like `compute`, are left
    out. Parts that could not be read are warnings, too.
    """
    for part, unknown in custom.unread.items():
        yield from read_fact(unknown, f"custom constraints of {part}", lambda item: iter(()))
    for constraint in custom.enforced:
        used = {kind.partition(".googleapis.com/")[0] for kind in constraint.types}
        if used and used.isdisjoint(services):
            continue
        kinds = ", ".join(constraint.types) or "unknown resources"
        rule = f": {constraint.rule}" if constraint.rule else ""
        text = f"cannot tell whether it refuses the stack or launches ({kinds}{rule})"
        remedy = (
            "compare the condition with the pools and the plan of `--preview`; `gcloud "
            f"org-policies describe-custom-constraint {constraint.name}` shows it"
        )
        yield Finding(Level.WARNING, f"policy {constraint.name}", text, remedy)


def _unknown(needs: str, error: GoogleError) -> Unknown:
    """Return the Unknown for a refused read that needs the permissions `needs`."""
    return Unknown(needs, str(error), error.status == UNAUTHORIZED)


def _ancestors(project: str, api: GoogleApi) -> list[str]:
    """Return the names of project, folders and organization, like `folders/1`.

    Raise GoogleError.
    """
    answer = api.call("POST", f"{_MANAGER}/{project}:getAncestry", {})
    ids = [item["resourceId"] for item in answer.get("ancestor", ())]
    return [f"{item['type']}s/{item['id']}" for item in ids]


def _custom_names(ancestor: str, api: GoogleApi) -> list[str]:
    """Return the names of the custom constraints with a policy at `ancestor`. Raise GoogleError."""
    policies: list[Any] = []
    for page in read_pages(api, f"{_POLICIES}/{ancestor}/policies"):
        policies += page.get("policies", ())
    names = [str(policy.get("name", "")).rpartition("/policies/")[2] for policy in policies]
    return [name for name in names if name.startswith(PREFIX)]


def _is_enforced(project: str, name: str, api: GoogleApi) -> bool:
    """Return whether a policy of the constraint is enforced for the project, also by a condition.

    Raise GoogleError.
    """
    url = f"{_POLICIES}/projects/{project}/policies/{name}:getEffectivePolicy"
    rules = api.call("GET", url).get("spec", {}).get("rules", ())
    return any(rule.get("enforce") for rule in rules)


def _describe(organization: str, name: str, api: GoogleApi) -> CustomConstraint:
    """Return the constraint; types and rule are empty if Google refuses the read."""
    try:
        found = api.call("GET", f"{_POLICIES}/{organization}/customConstraints/{name}")
    except GoogleError:
        # The name alone is enough for a warning.
        return CustomConstraint(name)
    action, condition = found.get("actionType", ""), found.get("condition", "")
    return CustomConstraint(
        name, tuple(found.get("resourceTypes", ())), f"{action} if {condition}"[:300]
    )
