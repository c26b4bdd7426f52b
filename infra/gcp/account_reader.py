"""Reads the facts about a project from Google, with the deployer's credentials.

The calls cost nothing and change nothing.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final, TypeVar

from control_plane.config.pools import ClusterConfig
from infra.findings import Unknown
from infra.gcp.account_facts import Policy, PoolFacts, Project, ProjectFacts, TypeFacts
from infra.gcp.custom_constraints import read_custom_constraints
from infra.gcp.deployer import HOST_PERMISSIONS, permissions_needed
from infra.gcp.google_api import NOT_FOUND, UNAUTHORIZED, GoogleApi, GoogleError
from infra.gcp.instance_ends import COMPUTE
from infra.gcp.launch_policies import LAUNCH_RULES
from infra.gcp.machine_catalog import MachineCatalog
from infra.gcp.purchases import Purchase, list_purchases
from infra.gcp.settings import Settings

T = TypeVar("T")

# The Google APIs that a stack and the functions call.
SERVICES: Final = (
    "artifactregistry",
    "cloudbilling",
    "cloudbuild",
    "cloudresourcemanager",
    "cloudscheduler",
    "compute",
    "eventarc",
    "eventarcpublishing",
    "firestore",
    "iam",
    "iamcredentials",
    "logging",
    "monitoring",
    "pubsub",
    "run",
    "storage",
    "sts",
)
# Constraints of organization policies that may prevent a stack or the launches of pools.
CONSTRAINTS: Final = (
    *LAUNCH_RULES,
    "cloudbuild.allowedWorkerPools",
    "compute.disableInstanceDataAccessApis",
    "gcp.restrictServiceUsage",
    "iam.disableServiceAccountCreation",
    "run.allowedIngress",
    "run.managed.requireInvokerIam",
    "storage.softDeletePolicySeconds",
)
# testIamPermissions takes 100 permissions, batchGet 20 services.
TESTED_MAX: Final = 100
LISTED_MAX: Final = 20
BUDGET_SERVICE: Final = "billingbudgets"
TRANSFER_SERVICE: Final = "storagetransfer"
SECRET_SERVICE: Final = "secretmanager"
MANAGER: Final = "https://cloudresourcemanager.googleapis.com/v1/projects"
POLICIES: Final = "https://orgpolicy.googleapis.com/v2"


def read_project(
    settings: Settings, cluster: ClusterConfig, api: GoogleApi, catalog: MachineCatalog
) -> ProjectFacts:
    """Read all facts that the settings and the pools depend on from Google.

    A read that Google refuses or does not answer becomes Unknown, also without credentials. Raises
    nothing.
    """
    project = settings.project
    pools = read_pools(project, settings.region, cluster, api, catalog)
    wanted = (
        *SERVICES,
        *((BUDGET_SERVICE,) if settings.monthly_budget else ()),
        *((TRANSFER_SERVICE,) if settings.copies else ()),
        *((SECRET_SERVICE,) if settings.relay else ()),
    )
    return ProjectFacts(
        **{field.name: getattr(pools, field.name) for field in fields(pools)},
        project=read_state(project, api),
        is_billed=read_billing(project, api),
        disabled_services=list_disabled(settings.project_number, wanted, api),
        denied=_ask("resourcemanager.projects.get", lambda: _list_denied(api, project)),
        policies={constraint: read_policy(project, constraint, api) for constraint in CONSTRAINTS},
        custom=read_custom_constraints(project, api),
        denied_at={
            host_subnetwork: _list_denied_at(api, host_subnetwork)
            for host_subnetwork in settings.host_subnetworks
        },
    )


def read_pools(
    project: str, region: str, cluster: ClusterConfig, api: GoogleApi, catalog: MachineCatalog
) -> PoolFacts:
    """Read the facts that the pools depend on from Google; Unknown for a failed read.

    `region` is the region of pools that name none. The quotas of `region` are read in any case.
    """
    purchases = list_purchases(region, cluster, gives_addresses=False)
    regions = sorted({purchase.region for purchase in purchases} | {region})
    names = {purchase.machine_type for purchase in purchases}
    accelerators = {purchase.accelerator for purchase in purchases} - {""}
    types = _ask("compute.machineTypes.list", lambda: catalog.read_types(names))
    return PoolFacts(
        quotas={
            "": _ask("compute.projects.get", lambda: _quotas(api, f"projects/{project}")),
            **{region: _region_quotas(api, project, region) for region in regions},
        },
        types=types,
        accelerators=_ask(
            "compute.acceleratorTypes.list", lambda: catalog.read_accelerators(accelerators)
        ),
        names=_names_instead(purchases, types, catalog),
    )


def _names_instead(
    purchases: Iterable[Purchase],
    types: Mapping[tuple[str, str], TypeFacts] | Unknown,
    catalog: MachineCatalog,
) -> Mapping[str, frozenset[str]]:
    """Return the names of all machine types in each region that lacks a pool's type.

    Return {} if the types are Unknown or a call fails.
    """
    if isinstance(types, Unknown):
        return {}
    lacking = {
        purchase.region
        for purchase in purchases
        if (purchase.region, purchase.machine_type) not in types
    }
    try:
        return {region: catalog.list_names(region) for region in sorted(lacking)}
    except GoogleError:
        # The names only help to suggest another type.
        return {}


def read_billing(project: str, api: GoogleApi) -> bool | Unknown:
    """Read whether a billing account pays for a project; Unknown if the read failed."""
    url = f"https://cloudbilling.googleapis.com/v1/projects/{project}/billingInfo"
    return _ask(
        "resourcemanager.projects.get", lambda: bool(api.call("GET", url).get("billingEnabled"))
    )


def _ask(needs: str, read: Callable[[], T]) -> T | Unknown:
    """Return the result of `read`, or Unknown with the reason if `read` raises GoogleError.

    `needs` names the permissions of the read.
    """
    try:
        return read()
    except GoogleError as error:
        return Unknown(needs, str(error), error.status == UNAUTHORIZED)


def read_state(project: str, api: GoogleApi) -> Project | Unknown:
    """Read a project's number and state from Google; Unknown if the read failed."""

    def read() -> Project:
        found = api.call("GET", f"{MANAGER}/{project}")
        return Project(str(found["projectNumber"]), found.get("lifecycleState") == "ACTIVE")

    return _ask("resourcemanager.projects.get", read)


def list_disabled(number: str, wanted: Sequence[str], api: GoogleApi) -> tuple[str, ...] | Unknown:
    """Return the Google APIs among `wanted` that the project has not enabled.

    `number` is the project's number, and the names are like `compute`. The result keeps the order
    of `wanted`, and is () if all are enabled. Return Unknown if the read failed.
    """
    parent = f"projects/{number}"
    url = f"https://serviceusage.googleapis.com/v1/{parent}/services:batchGet"

    def read() -> tuple[str, ...]:
        found = set()
        for names in _chunks(wanted, LISTED_MAX):
            asked = "&".join(f"names={parent}/services/{name}.googleapis.com" for name in names)
            services = api.call("GET", f"{url}?{asked}").get("services", ())
            found |= {
                service["name"].rpartition("/")[2]
                for service in services
                if service["state"] == "ENABLED"
            }
        return tuple(name for name in wanted if f"{name}.googleapis.com" not in found)

    return _ask("serviceusage.services.list", read)


def _list_denied(api: GoogleApi, project: str) -> tuple[str, ...]:
    """Return the sorted permissions of the deployer's role that the caller lacks.

    Raise GoogleError if a call fails.
    """
    url = f"{MANAGER}/{project}"
    wanted = sorted(permissions_needed())
    held: set[str] = set()
    for permissions in _chunks(wanted, TESTED_MAX):
        answer = api.call("POST", f"{url}:testIamPermissions", {"permissions": permissions})
        held |= set(answer.get("permissions", ()))
    return tuple(name for name in wanted if name not in held)


def _list_denied_at(api: GoogleApi, subnetwork: str) -> tuple[str, ...] | Unknown:
    """Return the permissions of HOST_PERMISSIONS that the caller lacks at a subnetwork.

    `subnetwork` is a path. Return Unknown if the read failed.
    """
    url = f"{COMPUTE}/{subnetwork}/testIamPermissions"

    def read() -> tuple[str, ...]:
        held = api.call("POST", url, {"permissions": list(HOST_PERMISSIONS)}).get("permissions", ())
        return tuple(
            host_permission for host_permission in HOST_PERMISSIONS if host_permission not in held
        )

    return _ask("to see the subnetwork", read)


def _region_quotas(api: GoogleApi, project: str, region: str) -> Mapping[str, float] | Unknown:
    """Read the quotas of a region by metric; Unknown if the read failed."""
    place = f"projects/{project}/regions/{region}"
    return _ask("compute.regions.get", lambda: _quotas(api, place))


def _quotas(api: GoogleApi, place: str) -> Mapping[str, float]:
    """Return the quotas of a project or region: the most that may be used, by metric.

    Raise GoogleError.
    """
    found = api.call("GET", f"{COMPUTE}/{place}").get("quotas", ())
    return {str(item["metric"]): float(item["limit"]) for item in found}


def read_policy(project: str, constraint: str, api: GoogleApi) -> Policy | Unknown:
    """Return the organization policy for a constraint, in effect for a project.

    Google evaluates conditions on the project. Other conditions remain, and are only noted. Return
    a policy without restrictions if none exists, and Unknown if the read failed.
    """
    place = f"projects/{project}/policies/{constraint}"
    url = f"{POLICIES}/{place}:getEffectivePolicy"

    def read() -> Policy:
        try:
            return _effective(api.call("GET", url))
        except GoogleError as error:
            if error.status != NOT_FOUND:
                raise
            return Policy()

    return _ask("orgpolicy.policy.get", read)


def _effective(policy: Mapping[str, Any]) -> Policy:
    """Return the union of the policy's rules, without rules that have a condition."""
    all_rules = policy.get("spec", {}).get("rules", ())
    rules = [rule for rule in all_rules if "condition" not in rule]
    values = [rule.get("values", {}) for rule in rules]
    return Policy(
        is_enforced=any(rule.get("enforce") for rule in rules),
        denies_all=any(rule.get("denyAll") for rule in rules),
        allowed=_texts(item.get("allowedValues", ()) for item in values),
        denied=_texts(item.get("deniedValues", ()) for item in values),
        has_conditions=len(rules) < len(all_rules),
    )


def _texts(lists: Iterable[Iterable[str]]) -> frozenset[str]:
    """Return all values of a policy, without the prefix of values that mean exactly themselves."""
    return frozenset(value.removeprefix("is:") for values in lists for value in values)


def _chunks(values: Iterable[str], size: int) -> Iterable[list[str]]:
    found = list(values)
    return (found[at : at + size] for at in range(0, len(found), size))
