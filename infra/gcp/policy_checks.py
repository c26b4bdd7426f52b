"""Checks of organization policies that prevent a stack or the stack's instances. Pure."""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from control_plane.config.pools import ClusterConfig
from infra.findings import Finding, Level, fine_finding
from infra.gcp.account_facts import Policy
from infra.gcp.account_reader import SERVICES
from infra.gcp.pool_checks import gcp_pools
from infra.gcp.settings import Settings
from provisioner.clouds.gcp.launch_request import IMAGE_DEFAULT

# Constraints on instances, which also matter for pools of clusters in other clouds.
IMAGES: Final = "compute.trustedImageProjects"
SHIELDED: Final = "compute.requireShieldedVm"
# The time for which the stack's buckets keep deleted objects, in the policy's form.
_SOFT_DELETE_SECONDS: Final = "0"
_SHIELDED: Final = ("enableSecureBoot", "enableVtpm", "enableIntegrityMonitoring")
_EXCEPTION: Final = "ask the manager of the organization's policies for an exception"


def check_policy(
    settings: Settings, cluster: ClusterConfig, name: str, policy: Policy
) -> Iterator[Finding]:
    """Yield a finding about the policy with the constraint `name`.

    The finding is an error if the policy refuses a resource of the stack or the pools' instances.
    """
    problem, remedy = _policy_problem(settings, name, policy)
    if not problem:
        problem, remedy = find_instance_problem(settings.project, cluster, name, policy)
    subject = f"policy {name}"
    if problem:
        yield Finding(Level.ERROR, subject, problem, remedy or _EXCEPTION)
    else:
        yield fine_finding(subject, "refuses nothing that the stack does")


def find_instance_problem(
    project: str, cluster: ClusterConfig, name: str, policy: Policy
) -> tuple[str, str]:
    """Return (problem, remedy) about a policy that refuses the pools' instances.

    The problem is "" if the policy refuses nothing. Only the constraints IMAGES and SHIELDED are
    checked. `project` is the project of the instances.
    """
    if name == IMAGES:
        refused = _refused_images(project, cluster, policy)
        remedy = "set provider.boot_disk_source_image to an image of an allowed project"
        return (f"no instance may have an image of {', '.join(refused)}" if refused else "", remedy)
    if name == SHIELDED and policy.is_enforced:
        pools = [pool for pool, provider in gcp_pools(cluster) if not _is_shielded(provider)]
        options = ", ".join(f"{name}: true" for name in _SHIELDED)
        remedy = f"set provider.base_config: {{shieldedInstanceConfig: {{{options}}}}}"
        text = f"instances without secure boot are refused: pools {', '.join(pools)}"
        return (text if pools else "", remedy)
    return "", ""


def _policy_problem(settings: Settings, name: str, policy: Policy) -> tuple[str, str]:
    """Return (problem, remedy) about a policy that refuses a resource of the stack.

    The problem is "" if the policy refuses nothing. An empty remedy stands for _EXCEPTION.
    """
    if name in _WHERE_ENFORCED and policy.is_enforced:
        return _WHERE_ENFORCED[name], ""
    find_problem = _PROBLEM_FINDERS.get(name)
    return find_problem(settings, policy) if find_problem else ("", "")


def _address_problem(settings: Settings, policy: Policy) -> tuple[str, str]:
    """Return (problem, remedy) about a policy that refuses public addresses of instances."""
    refuses = settings.gives_addresses and (policy.denies_all or policy.allowed)
    problem = "instances get no public address" if refuses else ""
    return problem, "set detcloud:privateSubnets: true"


def _build_problem(settings: Settings, policy: Policy) -> tuple[str, str]:
    """Return (problem, remedy) about a policy that refuses Cloud Build's own workers."""
    refuses = not settings.image and (policy.denies_all or policy.allowed)
    problem = "Cloud Build may not build the images with its own workers" if refuses else ""
    return problem, "build the images elsewhere, and set detcloud:image and suggestImage"


def _key_problem(settings: Settings, policy: Policy) -> tuple[str, str]:
    """Return (problem, remedy) about a policy that requires a customer-managed key."""
    keyed = ("artifactregistry", "firestore", "run", "storage")
    found = [name for name in keyed if f"{name}.googleapis.com" in policy.denied]
    refuses = found and not settings.kms_key
    problem = f"{', '.join(found)} need a customer-managed key" if refuses else ""
    return problem, "set detcloud:kmsKey"


def _service_problem(settings: Settings, policy: Policy) -> tuple[str, str]:
    """Return (problem, "") about a policy that refuses a Google API of the stack."""
    refused = [service for service in SERVICES if _is_refused(f"{service}.googleapis.com", policy)]
    return (f"{', '.join(refused)} may not be used" if refused else "", "")


def _ingress_problem(settings: Settings, policy: Policy) -> tuple[str, str]:
    """Return (problem, "") about a policy that keeps the internet from the API."""
    refuses = policy.allowed and "all" not in policy.allowed
    return ("the API cannot be reached from the internet" if refuses else "", "")


def _soft_delete_problem(settings: Settings, policy: Policy) -> tuple[str, str]:
    """Return (problem, "") about a policy that requires buckets to keep deleted objects."""
    refuses = _is_refused(_SOFT_DELETE_SECONDS, policy)
    problem = "buckets must keep deleted objects, but the stack's buckets do not"
    return (problem if refuses else "", "")


def _is_refused(value: str, policy: Policy) -> bool:
    """Return whether a policy denies the value, or allows only other values."""
    is_listed = not policy.allowed or value in policy.allowed
    return policy.denies_all or value in policy.denied or not is_listed


def _refused_images(project: str, cluster: ClusterConfig, policy: Policy) -> list[str]:
    """Return the sorted projects of pools' images that a policy refuses, as projects/ID.

    Return [] if the policy allows folders or organizations, because their projects are unknown.
    """
    if any(name.startswith("under:") for name in policy.allowed):
        return []
    used = {
        _image_project(project, provider.boot_disk_source_image or IMAGE_DEFAULT)
        for _, provider in gcp_pools(cluster)
    }
    return sorted(name for name in used if _is_refused(name, policy))


def _image_project(project: str, image: str) -> str:
    """Return projects/ID for the project of an image; without a project in the path, `project`."""
    _, found, path = image.partition("projects/")
    return f"projects/{path.partition('/')[0] if found else project}"


def _is_shielded(provider: object) -> bool:
    """Return whether a pool's `base_config` turns on secure boot and turns no protection off."""
    options = getattr(provider, "base_config", {}).get("shieldedInstanceConfig") or {}
    return options.get("enableSecureBoot") is True and all(
        options.get(name, True) is True for name in _SHIELDED
    )


def _location_problem(settings: Settings, policy: Policy) -> tuple[str, str]:
    """Return (problem, remedy) about a policy that refuses regions of the stack.

    The problem is "" if the policy refuses none of the regions.
    """
    remedy = "use a region that the policy allows"
    used = {settings.region, *settings.subnetwork_regions}
    denied = sorted(
        used & {name.removeprefix("in:").removesuffix("-locations") for name in policy.denied}
    )
    if denied:
        return f"{', '.join(denied)} are not allowed", remedy
    allowed = {name.removeprefix("in:").removesuffix("-locations") for name in policy.allowed}
    # A group like `us` or `europe` contains the regions with names that begin with the group.
    refused = sorted(name for name in used if not any(_is_within(name, group) for group in allowed))
    problem = f"{', '.join(refused)} are not allowed" if allowed and refused else ""
    return problem, remedy


def _is_within(region: str, group: str) -> bool:
    """Return whether a region is the location `group`, or belongs to a group like `eu`."""
    continents = {"eu": "europe", "us": "us", "asia": "asia"}
    return region == group or region.startswith(f"{continents.get(group, group)}-")


_WHERE_ENFORCED: Final = {
    "iam.disableServiceAccountCreation": "no service account can be made",
    "run.managed.requireInvokerIam": (
        "the API, which checks its callers' own tokens, would be unreachable"
    ),
}
# Functions that return (problem, remedy), like `_policy_problem`.
_PROBLEM_FINDERS: Final[Mapping[str, Callable[[Settings, Policy], tuple[str, str]]]] = {
    "cloudbuild.allowedWorkerPools": _build_problem,
    "compute.vmExternalIpAccess": _address_problem,
    "gcp.resourceLocations": _location_problem,
    "gcp.restrictNonCmekServices": _key_problem,
    "gcp.restrictServiceUsage": _service_problem,
    "run.allowedIngress": _ingress_problem,
    "storage.softDeletePolicySeconds": _soft_delete_problem,
}
