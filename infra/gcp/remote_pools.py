"""The check of pools on Google Cloud that belong to a cluster in another cloud."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from control_plane.config.pools import ClusterConfig
from infra.findings import Finding, Level, fine_finding, read_fact
from infra.gcp.account_checks import check_pools
from infra.gcp.account_facts import Policy, Project
from infra.gcp.account_reader import (
    list_disabled,
    read_billing,
    read_policy,
    read_pools,
    read_state,
)
from infra.gcp.custom_constraints import check_custom_constraints, read_custom_constraints
from infra.gcp.google_api import GoogleApi
from infra.gcp.launch_policies import LAUNCH_RULES
from infra.gcp.machine_catalog import MachineCatalog
from infra.gcp.policy_checks import check_launch_policy, unreadable_finding
from infra.gcp.pool_launches import PoolLaunch, list_launches
from infra.gcp.purchases import list_purchases
from infra.gcp.trust_policies import Trust
from infra.gcp.trust_script import SERVICES
from provisioner.clouds.gcp.instance_names import remote_defaults

# The problem for each constraint of an organization policy.
REFUSALS: Final = {
    "iam.workloadIdentityPoolAwsAccounts": "the cluster's account of AWS may not be trusted",
    "iam.workloadIdentityPoolProviders": "no provider of identities like AWS may be trusted",
}
_ACCOUNTS: Final = "iam.workloadIdentityPoolAwsAccounts"
_AWS: Final = "https://sts.amazonaws.com"


def find_pool_findings(
    trust: Trust,
    cluster: ClusterConfig,
    api: GoogleApi,
    catalog: MachineCatalog,
) -> list[Finding]:
    """Return findings about project, billing, services, types, quotas and policies for the pools.

    The facts are read from Google; a failed read becomes a warning. Return [] without pools on
    Google Cloud. Subjects that do not name a pool name the project.
    """
    names, purchases = (
        trust.names,
        list_purchases(trust.names.region, cluster, gives_addresses=True),
    )
    if not purchases:
        return []
    facts = read_pools(names.project, names.region, cluster, api, catalog)
    disabled = list_disabled(names.project_number, SERVICES, api)
    found = [
        *read_fact(
            read_state(names.project, api), "project", lambda project: _project(trust, project)
        ),
        *read_fact(read_billing(names.project, api), "billing", _billing),
        *read_fact(disabled, "services", lambda item: _services(trust, item)),
        *check_pools(names.project, purchases, facts),
    ]
    regions = sorted({purchase.region for purchase in purchases})
    defaults = {**remote_defaults(names, regions), "service_account": names.email("instance")}
    found += _policies(trust, list_launches(names, cluster, defaults), api)
    # Without the project, a subject such as `billing` could belong to either cloud.
    return [
        finding
        if finding.subject.startswith("pool ")
        else replace(finding, subject=f"{finding.subject} in {names.project}")
        for finding in found
    ]


def _project(trust: Trust, project: Project) -> Iterator[Finding]:
    """Yield an error if the project has another number or is about to be deleted.

    Otherwise yield a fine finding.
    """
    names = trust.names
    if project.number != names.project_number:
        text = f"its number is {project.number}, not {names.project_number}"
        remedy = f'set projectNumber: "{project.number}" in detcloud:otherClouds'
        yield Finding(Level.ERROR, "project", text, remedy)
    elif not project.is_active:
        yield Finding(Level.ERROR, "project", "it is scheduled for deletion", "use another project")
    else:
        yield Finding(Level.FINE, "project", f"it is number {project.number}")


def _billing(is_billed: bool) -> Iterator[Finding]:
    """Yield an error if no billing account pays for the project.

    Otherwise yield a fine finding.
    """
    if is_billed:
        yield Finding(Level.FINE, "billing", "an account pays for the project")
    else:
        text = "no billing account pays for the project"
        yield Finding(
            Level.ERROR, "billing", text, "link an account with `gcloud billing projects link`"
        )


def _services(trust: Trust, disabled: tuple[str, ...]) -> Iterator[Finding]:
    """Yield an error about Google APIs that the project has not enabled.

    Yield a fine finding if `disabled` is empty.
    """
    if disabled:
        team, cloud = trust.launcher.team, trust.launcher.cloud
        text = f"not enabled: {', '.join(disabled)}"
        remedy = f"the script of `detcloud deploy trust {cloud} --team {team}` enables them"
        yield Finding(Level.ERROR, "services", text, remedy)
    else:
        yield Finding(Level.FINE, "services", "all Google APIs that the pools need are enabled")


def _policies(trust: Trust, launches: Sequence[PoolLaunch], api: GoogleApi) -> list[Finding]:
    """Read policies and custom constraints, and return the findings about both.

    If no policy can be read, for a common reason, return a single warning.
    """
    project = trust.names.project
    policies = {name: read_policy(project, name, api) for name in (*REFUSALS, *LAUNCH_RULES)}
    if unreadable := unreadable_finding(project, policies):
        return [unreadable]
    found: list[Finding] = []
    for name, policy in policies.items():
        is_refusal = name in REFUSALS
        look = (
            partial(_policy, trust, name) if is_refusal else partial(_launch_policy, name, launches)
        )
        found += read_fact(policy, f"policy {name}", look)
    custom = read_custom_constraints(project, api)
    return [
        *found,
        *read_fact(
            custom,
            "custom constraints of the organization",
            lambda item: check_custom_constraints(item, SERVICES),
        ),
    ]


def _launch_policy(name: str, launches: Sequence[PoolLaunch], policy: Policy) -> Iterator[Finding]:
    """Yield findings about launches that a policy refuses or may refuse, or else a fine finding."""
    found = list(check_launch_policy(name, policy, launches))
    yield from found or [fine_finding(f"policy {name}", "refuses nothing that the pools need")]


def _policy(trust: Trust, name: str, policy: Policy) -> Iterator[Finding]:
    """Yield an error if a policy on a constraint of REFUSALS refuses a need of the account.

    Otherwise yield a fine finding.
    """
    allowed = {_ACCOUNTS: trust.launcher.account, "iam.workloadIdentityPoolProviders": _AWS}
    needed = allowed.get(name, "")
    is_refused = policy.denies_all or needed in policy.denied
    if policy.allowed and needed not in policy.allowed:
        is_refused = True
    if is_refused:
        remedy = "ask the manager of the organization's policies for an exception"
        yield Finding(Level.ERROR, f"policy {name}", REFUSALS[name], remedy)
    else:
        yield Finding(Level.FINE, f"policy {name}", "refuses nothing that the pools need")
