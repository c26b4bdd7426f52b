"""The judgement of a project's facts: whether the stack and its pools can run there, a finding for
each fact, with what to do. Facts in, findings out.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final, TypeVar

from control_plane.config.pools import ClusterConfig
from control_plane.fleet.records import Market
from control_plane.gcp.accelerator_quotas import ALL_REGIONS, quota_url
from control_plane.gcp.zones import region_of
from infra.findings import Finding, Level, Unknown, fine_finding, read_fact
from infra.gcp.account_facts import Policy, PoolFacts, Project, ProjectFacts, TypeFacts
from infra.gcp.deployer import HOST_PERMISSIONS, USE_SUBNETWORK
from infra.gcp.policies import HOST_ROLE
from infra.gcp.purchases import Purchase, list_purchases
from infra.gcp.settings import Settings

T = TypeVar("T")

MARKETS: Final = {Market.SPOT: "spot", Market.ON_DEMAND: "on demand"}
_ORGANIZATION: Final = "ask who manages the organization's policies for an exception"


def judge(settings: Settings, cluster: ClusterConfig, facts: ProjectFacts) -> list[Finding]:
    """Return the findings, in the order in which they are worth reading."""
    if isinstance(facts.project, Unknown) and facts.project.is_login:
        text = f"Google accepts no credentials: {facts.project.why}"
        remedy = "`gcloud auth application-default login` makes some"
        return [Finding(Level.ERROR, "credentials", text, remedy)]
    found = [
        *read_fact(facts.project, "project", lambda it: _project(settings, it)),
        *read_fact(facts.is_billed, "billing", lambda it: _billing(settings, is_billed=it)),
        *read_fact(facts.disabled_services, "services", lambda it: _services(settings, it)),
        *read_fact(facts.denied, "permissions", _permissions),
    ]
    for subnetwork, denied in facts.denied_at.items():
        found += read_fact(
            denied, f"subnetwork {subnetwork}", partial(_host_permissions, settings, subnetwork)
        )
    found += judge_pools(settings.project, list_purchases(settings.region, cluster), facts)
    for name, policy in facts.policies.items():
        found += read_fact(policy, f"policy {name}", partial(_policy, settings, name))
    return found


def judge_pools(project: str, purchases: list[Purchase], facts: PoolFacts) -> list[Finding]:
    """Return the findings of the pools: their types and quotas."""
    types = [it for purchase in purchases for it in _type_findings(purchase, facts)]
    return [*types, *_quota_findings(project, purchases, facts)]


def _project(settings: Settings, project: Project) -> Iterator[Finding]:
    if project.number != settings.project_number:
        text = (
            f"the number of {settings.project} is {project.number}, and detcloud:projectNumber is "
            f"{settings.project_number}"
        )
        yield Finding(Level.ERROR, "project", text, f"set detcloud:projectNumber: {project.number}")
    elif not project.is_active:
        text = f"{settings.project} is scheduled for deletion"
        yield Finding(Level.ERROR, "project", text, "use another project")
    else:
        yield fine_finding("project", f"{settings.project} is number {project.number}")


def _billing(settings: Settings, *, is_billed: bool) -> Iterator[Finding]:
    if is_billed:
        yield fine_finding("billing", "an account pays for the project")
    else:
        url = f"https://console.cloud.google.com/billing/linkedaccount?project={settings.project}"
        text = "no billing account pays for the project"
        yield Finding(Level.ERROR, "billing", text, f"link one at {url}")


def _services(settings: Settings, disabled: tuple[str, ...]) -> Iterator[Finding]:
    if disabled:
        names = " ".join(f"{it}.googleapis.com" for it in disabled)
        remedy = f"gcloud services enable {names} --project {settings.project}"
        text = f"not enabled: {', '.join(disabled)}"
        yield Finding(Level.ERROR, "services", text, remedy)
    else:
        yield fine_finding("services", "all that the stack uses are enabled")


def _permissions(denied: tuple[str, ...]) -> Iterator[Finding]:
    if denied:
        shown = ", ".join(denied[:8]) + (f" and {len(denied) - 8} more" if denied[8:] else "")
        remedy = "`detcloud deploy policy gcp` prints the role that a deployer needs"
        text = f"the deployer may not {shown}"
        yield Finding(Level.ERROR, "permissions", text, remedy)
    else:
        yield fine_finding(
            "permissions", "the deployer has all permissions that a deployment needs"
        )


def _host_permissions(
    settings: Settings, subnetwork: str, denied: tuple[str, ...]
) -> Iterator[Finding]:
    subject = f"subnetwork {subnetwork}"
    if not denied:
        yield fine_finding(subject, "the deployer may use it, and let the cluster's tick use it")
        return
    _, host, _, region, _, name = subnetwork.split("/")
    text = f"the deployer may not {', '.join(denied)}"
    if denied == (USE_SUBNETWORK,):
        given = HOST_ROLE
    else:
        given = f"{HOST_ROLE}, and a role with {', '.join(HOST_PERMISSIONS[1:])},"
    remedy = (
        f"who manages the host project {host} gives {given} there: gcloud compute networks subnets "
        f"add-iam-policy-binding {name} --project {host} --region {region} --role {HOST_ROLE} "
        f"--member user:DEPLOYER; instances need {HOST_ROLE} for "
        f"{settings.names.member('tick')}, which the deployment gives"
    )
    # A deployment gives the use to the tick, and uses the subnetwork for nothing itself.
    level = Level.WARNING if denied == (USE_SUBNETWORK,) else Level.ERROR
    yield Finding(level, subject, text, remedy)


def _type_findings(purchase: Purchase, facts: PoolFacts) -> Iterator[Finding]:
    subject = f"pool {purchase.pool}, {purchase.machine_type} {MARKETS[purchase.market]}"
    if isinstance(facts.types, Unknown):
        yield from read_fact(facts.types, subject, lambda it: iter(()))
        return
    kind = facts.types.get((purchase.region, purchase.machine_type))
    if kind is None:
        text = f"{purchase.region} does not offer this type"
        yield Finding(Level.ERROR, subject, text, "use another type, or another region")
        return
    offered = kind.zones
    if purchase.accelerator and not isinstance(facts.accelerators, Unknown):
        offered &= facts.accelerators.get(purchase.accelerator, frozenset())
    yield _zones(subject, purchase, kind, offered)


def _zones(subject: str, purchase: Purchase, kind: TypeFacts, offered: frozenset[str]) -> Finding:
    what = f"it with {purchase.accelerator}" if purchase.accelerator else "it"
    here = sorted(it for it in offered if region_of(it) == purchase.region)
    if not here:
        text = f"no zone of {purchase.region} offers {what}"
        return Finding(Level.ERROR, subject, text, "use another type, or another region")
    if purchase.zone and purchase.zone not in here:
        text = f"{purchase.zone} does not offer {what}; {', '.join(here)} do"
        return Finding(Level.ERROR, subject, text, "name one of those zones, or none")
    gpus = f"{purchase.gpus} GPUs ({purchase.accelerator}), " if purchase.gpus else ""
    size = f"{gpus}{kind.vcpus} vCPUs, {kind.memory_mb // 1024} GiB of memory"
    return fine_finding(subject, f"offered in {', '.join(here)}: {size}")


def _quota_findings(project: str, purchases: list[Purchase], facts: PoolFacts) -> Iterator[Finding]:
    """Yield a finding for each quota: whether it is enough for one instance, and for the pools."""
    users: dict[tuple[str, str], list[Purchase]] = {}
    for purchase in purchases:
        if purchase.gpus:
            users.setdefault((purchase.region, purchase.metric), []).append(purchase)
            users.setdefault(("", ALL_REGIONS), []).append(purchase)
    for (region, metric), those in users.items():
        subject = f"quota {metric}" + (f" in {region}" if region else "")
        limits = facts.quotas.get(region, Unknown("compute.regions.get", "not asked"))
        yield from read_fact(limits, subject, partial(_quota, project, subject, those, metric))


def _quota(
    project: str,
    subject: str,
    those: list[Purchase],
    metric: str,
    limits: Mapping[str, float],
) -> Iterator[Finding]:
    yield _compare(project, subject, those, limits.get(metric))


def _compare(project: str, subject: str, those: list[Purchase], limit: float | None) -> Finding:
    remedy = f"request an increase at {quota_url(project)}"
    if limit is None:
        text = "Compute Engine does not list it with the region's: it counts a family of GPUs"
        return Finding(Level.WARNING, subject, text, f"look at {quota_url(project)}")
    wanted = {it.pool: 0 for it in those}
    for it in those:
        wanted[it.pool] = max(wanted[it.pool], it.gpus * it.instances_max)
    smallest = min(those, key=lambda it: it.gpus)
    known = f"{limit:g} GPUs"
    if limit < smallest.gpus:
        text = f"{known}, and one {smallest.machine_type} has {smallest.gpus}"
        return Finding(Level.ERROR, subject, text, remedy)
    too_large = sorted({it.machine_type for it in those if it.gpus > limit})
    if too_large:
        text = f"{known}, too few for one {', '.join(too_large)}"
        return Finding(Level.WARNING, subject, text, remedy)
    total, pools = sum(wanted.values()), ", ".join(wanted)
    if limit < total:
        text = f"{known}, and the pools {pools} may want {total}"
        return Finding(Level.WARNING, subject, text, remedy)
    return fine_finding(subject, f"{known}, enough for the {total} of {pools}")


def _policy(settings: Settings, name: str, policy: Policy) -> Iterator[Finding]:
    problem, remedy = _policy_problem(settings, name, policy)
    subject = f"policy {name}"
    if problem:
        yield Finding(Level.ERROR, subject, problem, remedy or _ORGANIZATION)
    else:
        yield fine_finding(subject, "refuses nothing that the stack does")


def _policy_problem(settings: Settings, name: str, policy: Policy) -> tuple[str, str]:
    """Return what a policy refuses of the stack and what to do, "" for nothing."""
    match name:
        case "compute.vmExternalIpAccess":
            has_public = not settings.network and not settings.private_subnets
            if has_public and (policy.denies_all or policy.allowed):
                return "instances get no public address", "set detcloud:privateSubnets: true"
        case "gcp.resourceLocations":
            return _location_problem(settings, policy), "use a region that it allows"
        case "gcp.restrictNonCmekServices":
            without_key = sorted(
                it
                for it in ("artifactregistry", "firestore", "run", "storage")
                if f"{it}.googleapis.com" in policy.denied
            )
            if without_key and not settings.kms_key:
                return f"{', '.join(without_key)} need a key of one's own", "set detcloud:kmsKey"
        case "iam.disableServiceAccountCreation" if policy.is_enforced:
            return "no service account can be made", ""
        case "run.managed.requireInvokerIam" if policy.is_enforced:
            return "the API, which knows its callers by their own tokens, would be unreachable", ""
        case "run.allowedIngress" if policy.allowed and "all" not in policy.allowed:
            return "the API cannot be reached from the internet", ""
    return "", ""


def _location_problem(settings: Settings, policy: Policy) -> str:
    """Return which regions a policy of locations refuses, as far as its values name them."""
    used = {settings.region, *settings.subnetwork_regions}
    denied = sorted(
        used & {it.removeprefix("in:").removesuffix("-locations") for it in policy.denied}
    )
    if denied:
        return f"{', '.join(denied)} are not allowed"
    allowed = {it.removeprefix("in:").removesuffix("-locations") for it in policy.allowed}
    # Groups such as `us` or `europe` have the regions whose names begin so.
    refused = sorted(it for it in used if not any(_is_within(it, group) for group in allowed))
    return f"{', '.join(refused)} are not allowed" if allowed and refused else ""


def _is_within(region: str, group: str) -> bool:
    continents = {"eu": "europe", "us": "us", "asia": "asia"}
    return region == group or region.startswith(f"{continents.get(group, group)}-")
