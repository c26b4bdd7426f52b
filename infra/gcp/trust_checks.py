"""The check of a cluster's remote account on Google Cloud, with the deployer's credentials.

The credentials may lack the permissions to read the account.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

from infra.findings import Finding, Level
from infra.gcp.account_reader import MANAGER
from infra.gcp.google_api import GoogleApi, GoogleError, read_or_none
from infra.gcp.instance_ends import COMPUTE
from infra.gcp.names import Names
from infra.gcp.policies import ROLES, Grant
from infra.gcp.trust_policies import MAPPING, Trust, list_remote_grants
from infra.gcp.trust_script import ACCOUNTS, TRUST_ROLE

IAM: Final = "https://iam.googleapis.com/v1"
# Only version 3 of a policy includes conditions.
_VERSIONED: Final = {"options": {"requestedPolicyVersion": 3}}
_UNAUTHORIZED: Final = 401

_NAMESAKE: Final = "it belongs to another cluster of the same name"

Problems = Callable[[], Iterator[str]]


def find_remote_findings(
    trust: Trust, regions: tuple[str, ...], api: GoogleApi, *, logs_instances: bool
) -> list[Finding]:
    """Return findings about trust, accounts, roles, grants and network of the remote account.

    The trust is the identity provider by which Google accepts the cluster's function in the other
    cloud. Each of the five subjects has a FINE finding if it is correct. Without valid credentials,
    return only a warning. A subject that Google refuses to read is a warning, too; a missing or
    different resource is an error. `regions` need a subnetwork each. With `logs_instances`,
    instances need the role for Cloud Logging.
    """
    names = trust.names
    grants = list_remote_grants(names, regions, logs_instances=logs_instances)
    roles = [*dict.fromkeys(grant.role for grant in grants), TRUST_ROLE]
    checks: dict[str, Problems] = {
        "trust": lambda: _trust_problems(trust, api),
        "accounts": lambda: _account_problems(names, api),
        "roles": lambda: _role_problems(names, roles, api),
        "grants": lambda: _grant_problems(names, grants, api),
        "network": lambda: _network_problems(names, regions, api),
    }
    found = []
    for part, look in checks.items():
        subject = f"{part} in {names.project}"
        try:
            problems = list(look())
        except GoogleError as error:
            if error.status == _UNAUTHORIZED:
                return [_without_credentials(trust, error)]
            remedy = "the check needs roles/viewer and roles/iam.securityReviewer there"
            text = f"could not be checked: {error}"
            found.append(Finding(Level.WARNING, subject, text, remedy))
            continue
        found += [_missing(trust, subject, problem) for problem in problems] or [
            Finding(Level.FINE, subject, "as pools there need it")
        ]
    return found


def _without_credentials(trust: Trust, error: GoogleError) -> Finding:
    """Return the warning that nothing was checked, because Google accepts no credentials.

    The text contains `error`, and the remedy names the command that makes credentials.
    """
    team, cloud = trust.launcher.team, trust.launcher.cloud
    text = f"neither the remote account nor its pools were checked: {error}"
    remedy = (
        "create credentials with `gcloud auth application-default login`, and repeat `detcloud "
        f"deploy check {cloud} --team {team}`"
    )
    return Finding(Level.WARNING, f"credentials for {trust.names.project}", text, remedy)


def _missing(trust: Trust, subject: str, problem: str) -> Finding:
    """Return the error about a problem, with a remedy."""
    team, cloud = trust.launcher.team, trust.launcher.cloud
    if problem.startswith(_NAMESAKE):
        remedy = "use another project, or another name for the team; see docs/resource-pools.md"
        return Finding(Level.ERROR, subject, problem, remedy)
    remedy = f"`detcloud deploy trust {cloud} --team {team}` prints the commands that create it"
    return Finding(Level.ERROR, subject, problem, remedy)


def _trust_problems(trust: Trust, api: GoogleApi) -> Iterator[str]:
    """Yield a problem if the identity provider is missing, of another cluster, or different.

    Also yield a problem if the function that launches instances may not act as the service account
    `launcher`. Raise GoogleError.
    """
    provider = read_or_none(api, f"{IAM}/{trust.provider_path}")
    if provider is None or provider.get("state") != "ACTIVE" or provider.get("disabled"):
        yield f"{trust.provider_path} is missing, or disabled"
        return
    account = provider.get("aws", {}).get("accountId")
    if account != trust.launcher.account:
        yield f"{_NAMESAKE}, in the account {account}"
        return
    key, _, value = MAPPING.partition("=")
    facts = {
        "condition": (provider.get("attributeCondition"), trust.condition),
        key: (provider.get("attributeMapping", {}).get(key), value),
    }
    for name, (there, wanted) in facts.items():
        if there != wanted:
            yield f"the {name} of {trust.provider_path} is {there}: expected {wanted}"
    email = trust.names.email("launcher")
    policy = _account_policy(trust.names, email, api)
    if not _has_binding(policy, trust.member, trust.names.role(TRUST_ROLE), ""):
        yield f"{email} does not trust {trust.member}"


def _account_problems(names: Names, api: GoogleApi) -> Iterator[str]:
    """Yield a problem for each service account that is missing or disabled. Raise GoogleError."""
    for account in ACCOUNTS:
        email = names.email(account)
        found = read_or_none(api, f"{IAM}/projects/{names.project}/serviceAccounts/{email}")
        if found is None or found.get("disabled"):
            yield f"{email} is missing, or disabled"


def _role_problems(names: Names, roles: list[str], api: GoogleApi) -> Iterator[str]:
    """Yield a problem for each custom role that is missing or lacks permissions.

    Raise GoogleError.
    """
    for role in roles:
        found = read_or_none(api, f"{IAM}/{names.role(role)}")
        if found is None or found.get("deleted"):
            yield f"{names.role(role)} is missing"
        elif lacking := sorted(set(ROLES[role]) - set(found.get("includedPermissions", ()))):
            yield f"{names.role(role)} lacks {', '.join(lacking)}"


def _grant_problems(names: Names, grants: list[Grant], api: GoogleApi) -> Iterator[str]:
    """Yield a problem for each grant that does not exist with the expected condition.

    Skip grants on missing subnetworks, which another check reports. Raise GoogleError.
    """
    project = api.call("POST", f"{MANAGER}/{names.project}:getIamPolicy", _VERSIONED)
    for grant in grants:
        match grant.place.kind:
            case "project":
                policy, where = project, names.project
            case "subnetwork":
                where = names.subnetwork_path(grant.place.name)
                if read_or_none(api, f"{COMPUTE}/{where}") is None:
                    continue
                policy = api.call("GET", f"{COMPUTE}/{where}/getIamPolicy")
            case _:
                where = names.email(grant.place.name)
                policy = _account_policy(names, where, api)
        member, role = names.member(grant.account), names.role(grant.role)
        if not _has_binding(policy, member, role, grant.condition):
            condition = f", where {grant.condition}" if grant.condition else ""
            yield f"{member} lacks {role} at {where}{condition}"


def _network_problems(names: Names, regions: tuple[str, ...], api: GoogleApi) -> Iterator[str]:
    """Yield a problem for a missing network and each missing subnetwork. Raise GoogleError."""
    for path in (names.network_path, *map(names.subnetwork_path, regions)):
        if read_or_none(api, f"{COMPUTE}/{path}") is None:
            yield f"{path} is missing"


def _account_policy(names: Names, email: str, api: GoogleApi) -> Any:
    """Return the IAM policy of a service account, or {} if the account does not exist.

    Raise GoogleError for other refusals.
    """
    url = f"{IAM}/projects/{names.project}/serviceAccounts/{email}:getIamPolicy"
    try:
        return api.call("POST", url, {})
    except GoogleError as error:
        if error.status != 404:
            raise
        return {}


def _has_binding(policy: Any, member: str, role: str, condition: str) -> bool:
    """Return whether an IAM policy gives the member the role with exactly this condition.

    `condition` is "" for a binding without a condition.
    """
    return any(
        binding["role"] == role
        and member in binding.get("members", ())
        and binding.get("condition", {}).get("expression", "") == condition
        for binding in policy.get("bindings", ())
    )
