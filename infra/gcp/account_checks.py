"""Checks whether a stack and the stack's pools can run in a Google Cloud project. Pure.

Each check turns a fact about the project into findings with a text and a remedy.
"""

from collections.abc import Iterator
from functools import partial
from typing import Final

from control_plane.config.pools import ClusterConfig
from control_plane.fleet.records import Market
from control_plane.gcp.zones import region_of
from infra.findings import Finding, Level, Unknown, fine_finding, read_fact
from infra.gcp.account_facts import (
    AcceleratorFacts,
    PoolFacts,
    Project,
    ProjectFacts,
    TypeFacts,
)
from infra.gcp.account_reader import SERVICES
from infra.gcp.custom_constraints import check_custom_constraints
from infra.gcp.deployer import HOST_PERMISSIONS, USE_SUBNETWORK
from infra.gcp.described_types import describe_missing
from infra.gcp.policies import HOST_ROLE
from infra.gcp.policy_checks import check_policy, unreadable_finding
from infra.gcp.pool_launches import list_launches, stack_defaults
from infra.gcp.purchases import Purchase, list_purchases
from infra.gcp.quota_checks import check_quotas
from infra.gcp.settings import Settings

MARKETS: Final = {Market.SPOT: "spot", Market.ON_DEMAND: "on demand"}
ARM: Final = "ARM64"


def check_facts(settings: Settings, cluster: ClusterConfig, facts: ProjectFacts) -> list[Finding]:
    """Return findings about project, billing, services, permissions, pools and policies.

    If Google accepts no credentials, return only an error about the credentials. Any other Unknown
    fact becomes a warning.
    """
    if isinstance(facts.project, Unknown) and facts.project.is_login:
        text = f"Google accepts no credentials: {facts.project.why}"
        remedy = "`gcloud auth application-default login` creates credentials"
        return [Finding(Level.ERROR, "credentials", text, remedy)]
    found = [
        *read_fact(facts.project, "project", lambda project: _project(settings, project)),
        *read_fact(facts.is_billed, "billing", lambda item: _billing(settings, is_billed=item)),
        *read_fact(
            facts.disabled_services,
            "services",
            lambda disabled: _services(settings, disabled),
        ),
        *read_fact(facts.denied, "permissions", _permissions),
    ]
    for subnetwork, denied in facts.denied_at.items():
        found += read_fact(
            denied, f"subnetwork {subnetwork}", partial(_host_permissions, settings, subnetwork)
        )
    purchases = list_purchases(settings.region, cluster, settings.gives_addresses)
    found += check_pools(settings.project, purchases, facts)
    return [*found, *_policies(settings, cluster, facts)]


def _policies(settings: Settings, cluster: ClusterConfig, facts: ProjectFacts) -> Iterator[Finding]:
    """Yield the findings about each policy and custom constraint of the organization.

    If all policies are Unknown for the same reason, yield a single warning instead.
    """
    policies = facts.policies
    if unreadable := unreadable_finding(settings.project, policies):
        yield unreadable
        return
    launches = list_launches(settings.names, cluster, stack_defaults(settings))
    for name, policy in policies.items():
        check = partial(check_policy, settings, launches, name)
        yield from read_fact(policy, f"policy {name}", check)
    yield from read_fact(
        facts.custom,
        "custom constraints of the organization",
        lambda custom: check_custom_constraints(custom, SERVICES),
    )


def check_pools(project: str, purchases: list[Purchase], facts: PoolFacts) -> list[Finding]:
    """Return a finding about the machine type of each purchase, and findings about quotas.

    Unknown facts become warnings. Return [] without purchases.
    """
    types = [
        type_finding for purchase in purchases for type_finding in _type_findings(purchase, facts)
    ]
    return [*types, *check_quotas(project, purchases, facts)]


def _project(settings: Settings, project: Project) -> Iterator[Finding]:
    """Yield an error if the project has another number or is scheduled for deletion.

    Otherwise yield a fine finding.
    """
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
    """Yield an error if no billing account pays for the project.

    Otherwise yield a fine finding.
    """
    if is_billed:
        yield fine_finding("billing", "an account pays for the project")
    else:
        url = f"https://console.cloud.google.com/billing/linkedaccount?project={settings.project}"
        text = "no billing account pays for the project"
        yield Finding(Level.ERROR, "billing", text, f"link an account at {url}")


def _services(settings: Settings, disabled: tuple[str, ...]) -> Iterator[Finding]:
    """Yield an error about Google APIs that the project has not enabled.

    Yield a fine finding if `disabled` is empty.
    """
    if disabled:
        names = " ".join(f"{name}.googleapis.com" for name in disabled)
        remedy = f"gcloud services enable {names} --project {settings.project}"
        text = f"not enabled: {', '.join(disabled)}"
        yield Finding(Level.ERROR, "services", text, remedy)
    else:
        yield fine_finding("services", "all Google APIs that the stack uses are enabled")


def _permissions(denied: tuple[str, ...]) -> Iterator[Finding]:
    """Yield an error about permissions that the deployer lacks.

    Yield a fine finding if `denied` is empty. The text lists at most 8 permissions.
    """
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
    """Yield an error about permissions that the deployer lacks on another project's subnetwork.

    A lack of USE_SUBNETWORK alone is a warning, and no lack a fine finding. `subnetwork` is a path.
    """
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
        f"ask the manager of the host project {host} to grant {given}: gcloud compute networks "
        f"subnets add-iam-policy-binding {name} --project {host} --region {region} "
        f"--role {HOST_ROLE} --member user:DEPLOYER; instances need {HOST_ROLE} for "
        f"{settings.names.member('tick')}, which the deployment grants"
    )
    # The deployer only grants the use to the tick, and does not use the subnetwork.
    level = Level.WARNING if denied == (USE_SUBNETWORK,) else Level.ERROR
    yield Finding(level, subject, text, remedy)


def _type_findings(purchase: Purchase, facts: PoolFacts) -> Iterator[Finding]:
    """Yield the finding about the machine type of a purchase: the first error, or a fine finding.

    Errors are a type that the region or the pool's zone does not offer, too many attached GPUs,
    another number of built-in GPUs, and a processor that the image does not fit. Unknown types are
    a warning.
    """
    subject = f"pool {purchase.pool}, {purchase.machine_type} {MARKETS[purchase.market]}"
    if isinstance(facts.types, Unknown):
        yield from read_fact(facts.types, subject, lambda item: iter(()))
        return
    kind = facts.types.get((purchase.region, purchase.machine_type))
    if kind is None:
        elsewhere = {
            zone
            for (_, name), type_facts in facts.types.items()
            if name == purchase.machine_type
            for zone in type_facts.zones
        }
        names = facts.names.get(purchase.region, frozenset())
        text, remedy = describe_missing(purchase.machine_type, purchase.region, elsewhere, names)
        yield Finding(Level.ERROR, subject, text, remedy)
        return
    offered = kind.zones
    if purchase.accelerator and not isinstance(facts.accelerators, Unknown):
        accelerator = facts.accelerators.get(purchase.accelerator, AcceleratorFacts(frozenset(), 0))
        offered &= accelerator.zones
        if offered and purchase.attached > accelerator.number_max:
            text = f"an instance takes {accelerator.number_max} of {purchase.accelerator} at most"
            yield Finding(Level.ERROR, subject, text, f"attach {accelerator.number_max} or fewer")
            return
    yield _size(purchase, kind) or _zones(subject, purchase, kind, offered)


def _size(purchase: Purchase, kind: TypeFacts) -> Finding | None:
    """Return an error if the pool's built-in GPUs or machine image do not fit the machine type.

    The configured number of GPUs must be Compute Engine's. The default image does not fit ARM
    processors. Return None if both fit.
    """
    subject = f"pool {purchase.pool}, {purchase.machine_type} {MARKETS[purchase.market]}"
    own = purchase.gpus - purchase.attached
    if own and own != kind.gpus:
        text = f"it has {kind.gpus} GPUs, and the cluster counts {own}"
        remedy = "correct the number in provider.machine_types, or remove the type there"
        return Finding(Level.ERROR, subject, text, remedy)
    if kind.architecture == ARM and not purchase.has_own_image:
        text = f"its processors are {ARM}, and the default machine image is for X86_64"
        remedy = f"name an image for {ARM} in provider.boot_disk_source_image"
        return Finding(Level.ERROR, subject, text, remedy)
    return None


def _zones(subject: str, purchase: Purchase, kind: TypeFacts, offered: frozenset[str]) -> Finding:
    """Return an error if no zone of the region, or not the pool's zone, is among `offered`.

    Otherwise return a fine finding with the zones and the size of the type.
    """
    what = f"it with {purchase.accelerator}" if purchase.accelerator else "it"
    here = sorted(name for name in offered if region_of(name) == purchase.region)
    if not here:
        text = f"no zone of {purchase.region} offers {what}"
        return Finding(Level.ERROR, subject, text, "use another type, or another region")
    if purchase.zone and purchase.zone not in here:
        text = f"{purchase.zone} does not offer {what}; {', '.join(here)} do"
        return Finding(Level.ERROR, subject, text, "name one of these zones, or no zone")
    gpus = f"{purchase.gpus} GPUs ({purchase.accelerator}), " if purchase.gpus else ""
    size = f"{gpus}{kind.vcpus} vCPUs, {kind.memory_mb // 1024} GiB of memory"
    return fine_finding(subject, f"offered in {', '.join(here)}: {size}")
