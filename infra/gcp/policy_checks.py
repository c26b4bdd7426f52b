"""Checks of organization policies that prevent a stack or the stack's instances. Pure."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from infra.findings import Finding, Level, Unknown, fine_finding
from infra.gcp.account_facts import Policy
from infra.gcp.account_reader import SERVICES
from infra.gcp.launch_policies import (
    EXCEPTION,
    LAUNCH_RULES,
    Verdict,
    check_launches,
    location_verdict,
)
from infra.gcp.pool_launches import PoolLaunch
from infra.gcp.settings import Settings

# The time for which the stack's buckets keep deleted objects, in the policy's form.
_SOFT_DELETE_SECONDS: Final = "0"


def check_policy(
    settings: Settings, launches: Sequence[PoolLaunch], name: str, policy: Policy
) -> Iterator[Finding]:
    """Yield findings about the policy with the constraint `name`.

    A finding is an error if the policy refuses a resource of the stack or a launch, and a warning
    if the policy may refuse one. Without such a finding, yield a fine finding.
    """
    verdict = _stack_verdict(settings, name, policy)
    found = [] if verdict is None else [_to_finding(name, verdict)]
    if verdict is None or not verdict.is_certain:
        found += check_launch_policy(name, policy, launches)
    yield from found or [fine_finding(f"policy {name}", "refuses nothing that the stack does")]


def unreadable_finding(project: str, policies: Mapping[str, Policy | Unknown]) -> Finding | None:
    """Return a single warning if no policy could be read, for a common reason. Otherwise None."""
    reasons = {item.why for item in policies.values() if isinstance(item, Unknown)}
    is_silent = all(isinstance(item, Unknown) for item in policies.values())
    if not is_silent or len(reasons) != 1 or len(policies) < 2:
        return None
    remedy = (
        "the check needs orgpolicy.policy.get, and `gcloud services enable "
        f"orgpolicy.googleapis.com --project {project}`; a project without an organization has none"
    )
    text = f"could not be checked: {reasons.pop()}"
    return Finding(Level.WARNING, "policies of the organization", text, remedy)


def check_launch_policy(
    name: str, policy: Policy, launches: Sequence[PoolLaunch]
) -> Iterator[Finding]:
    """Yield the findings about launches, and a warning if the policy depends on a condition."""
    if policy.has_conditions and (launches or name not in LAUNCH_RULES):
        text = "cannot tell what it refuses, because a rule depends on a condition, such as a tag"
        remedy = f"`gcloud org-policies describe {name} --project PROJECT --effective` shows it"
        yield Finding(Level.WARNING, f"policy {name}", text, remedy)
    yield from check_launches(name, policy, launches)


def _to_finding(name: str, verdict: Verdict) -> Finding:
    """Return the finding of a verdict about the stack."""
    level = Level.ERROR if verdict.is_certain else Level.WARNING
    return Finding(level, f"policy {name}", verdict.text, verdict.remedy)


def _stack_verdict(settings: Settings, name: str, policy: Policy) -> Verdict | None:
    """Return the verdict of a policy on the resources of the stack, without instances."""
    if name in _WHERE_ENFORCED and policy.is_enforced:
        return _WHERE_ENFORCED[name]
    find = _STACK_RULES.get(name)
    return find(settings, policy) if find else None


def _check_build(settings: Settings, policy: Policy) -> Verdict | None:
    """Refuse Cloud Build's own workers."""
    if settings.image or not (policy.denies_all or policy.allowed):
        return None
    text = "Cloud Build may not build the images with its own workers"
    return Verdict(text, "build the images elsewhere, and set detcloud:image and suggestImage")


def _check_keys(settings: Settings, policy: Policy) -> Verdict | None:
    """Refuse services without a customer-managed key."""
    keyed = ("artifactregistry", "firestore", "run", "storage")
    found = [name for name in keyed if f"{name}.googleapis.com" in policy.denied]
    if not found or settings.kms_key:
        return None
    return Verdict(f"{', '.join(found)} need a customer-managed key", "set detcloud:kmsKey")


def _check_services(settings: Settings, policy: Policy) -> Verdict | None:
    """Refuse Google APIs of the stack."""
    refused = [service for service in SERVICES if _is_refused(f"{service}.googleapis.com", policy)]
    return Verdict(f"{', '.join(refused)} may not be used", EXCEPTION) if refused else None


def _check_ingress(settings: Settings, policy: Policy) -> Verdict | None:
    """Refuse requests to the API from the internet."""
    refuses = policy.denies_all or (policy.allowed and "all" not in policy.allowed)
    refuses = refuses or "all" in policy.denied
    return Verdict("the API cannot be reached from the internet", EXCEPTION) if refuses else None


def _check_soft_delete(settings: Settings, policy: Policy) -> Verdict | None:
    """Refuse buckets that keep no deleted objects."""
    text = "buckets must keep deleted objects, but the stack's buckets do not"
    return Verdict(text, EXCEPTION) if _is_refused(_SOFT_DELETE_SECONDS, policy) else None


def _check_locations(settings: Settings, policy: Policy) -> Verdict | None:
    """Refuse regions of the stack: the first certain refusals, or else a possible refusal."""
    regions = sorted({settings.region, *settings.subnetwork_regions})
    verdicts = {region: location_verdict(region, region, policy) for region in regions}
    found = {region: verdict for region, verdict in verdicts.items() if verdict is not None}
    refused = [region for region, verdict in found.items() if verdict.is_certain]
    if refused:
        return Verdict(f"{', '.join(refused)} are not allowed", found[refused[0]].remedy)
    return next(iter(found.values()), None)


def _is_refused(value: str, policy: Policy) -> bool:
    """Return whether a policy denies the value, or allows only other values."""
    is_listed = not policy.allowed or value in policy.allowed
    return policy.denies_all or value in policy.denied or not is_listed


_WHERE_ENFORCED: Final = {
    "iam.disableServiceAccountCreation": Verdict("no service account can be made", EXCEPTION),
    "run.managed.requireInvokerIam": Verdict(
        "the API, which checks its callers' own tokens, would be unreachable", EXCEPTION
    ),
    "compute.disableInstanceDataAccessApis": Verdict(
        "the cluster cannot read the serial port of instances, so that failed boots may lack their "
        "last lines",
        "read the boot log in Cloud Logging (use_cloud_logging), or " + EXCEPTION,
        is_certain=False,
    ),
}
_STACK_RULES: Final[Mapping[str, Callable[[Settings, Policy], Verdict | None]]] = {
    "cloudbuild.allowedWorkerPools": _check_build,
    "gcp.resourceLocations": _check_locations,
    "gcp.restrictNonCmekServices": _check_keys,
    "gcp.restrictServiceUsage": _check_services,
    "run.allowedIngress": _check_ingress,
    "storage.softDeletePolicySeconds": _check_soft_delete,
}
