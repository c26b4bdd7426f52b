"""Checks of organization policies: what they refuse of a stack and its instances."""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from control_plane.config.pools import ClusterConfig
from infra.findings import Finding, Level, fine_finding
from infra.gcp.account_facts import Policy
from infra.gcp.account_reader import SERVICES
from infra.gcp.pool_checks import gcp_pools
from infra.gcp.settings import Settings
from provisioner.clouds.gcp.launch_request import IMAGE_DEFAULT

# Those that may refuse the instances of pools, wherever the cluster's functions run.
IMAGES: Final = "compute.trustedImageProjects"
SHIELDED: Final = "compute.requireShieldedVm"
# How long the stack's buckets keep what is deleted, as the policy names it.
_SOFT_DELETE_SECONDS: Final = "0"
_SHIELDED: Final = ("enableSecureBoot", "enableVtpm", "enableIntegrityMonitoring")
_EXCEPTION: Final = "ask who manages the organization's policies for an exception"


def check_policy(
    settings: Settings, cluster: ClusterConfig, name: str, policy: Policy
) -> Iterator[Finding]:
    """Yield the finding of a policy for a stack and its pools."""
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
    """Return what a policy refuses of the instances of pools and what to do, "" for nothing."""
    if name == IMAGES:
        refused = _refused_images(project, cluster, policy)
        remedy = "set provider.boot_disk_source_image to an image of a project that it allows"
        return (f"no instance may have an image of {', '.join(refused)}" if refused else "", remedy)
    if name == SHIELDED and policy.is_enforced:
        pools = [pool for pool, provider in gcp_pools(cluster) if not _is_shielded(provider)]
        options = ", ".join(f"{name}: true" for name in _SHIELDED)
        remedy = f"set provider.base_config: {{shieldedInstanceConfig: {{{options}}}}}"
        text = f"instances without secure boot are refused: pools {', '.join(pools)}"
        return (text if pools else "", remedy)
    return "", ""


def _policy_problem(settings: Settings, name: str, policy: Policy) -> tuple[str, str]:
    if name in _WHERE_ENFORCED and policy.is_enforced:
        return _WHERE_ENFORCED[name], ""
    find_problem = _PROBLEM_FINDERS.get(name)
    return find_problem(settings, policy) if find_problem else ("", "")


def _address_problem(settings: Settings, policy: Policy) -> tuple[str, str]:
    refuses = settings.gives_addresses and (policy.denies_all or policy.allowed)
    problem = "instances get no public address" if refuses else ""
    return problem, "set detcloud:privateSubnets: true"


def _build_problem(settings: Settings, policy: Policy) -> tuple[str, str]:
    refuses = not settings.image and (policy.denies_all or policy.allowed)
    problem = "Cloud Build may not build the images with its own workers" if refuses else ""
    return problem, "build the images elsewhere, and set detcloud:image and suggestImage"


def _key_problem(settings: Settings, policy: Policy) -> tuple[str, str]:
    keyed = ("artifactregistry", "firestore", "run", "storage")
    found = [name for name in keyed if f"{name}.googleapis.com" in policy.denied]
    refuses = found and not settings.kms_key
    problem = f"{', '.join(found)} need a key of one's own" if refuses else ""
    return problem, "set detcloud:kmsKey"


def _service_problem(settings: Settings, policy: Policy) -> tuple[str, str]:
    refused = [service for service in SERVICES if _is_refused(f"{service}.googleapis.com", policy)]
    return (f"{', '.join(refused)} may not be used" if refused else "", "")


def _ingress_problem(settings: Settings, policy: Policy) -> tuple[str, str]:
    refuses = policy.allowed and "all" not in policy.allowed
    return ("the API cannot be reached from the internet" if refuses else "", "")


def _soft_delete_problem(settings: Settings, policy: Policy) -> tuple[str, str]:
    refuses = _is_refused(_SOFT_DELETE_SECONDS, policy)
    problem = "buckets have to keep what is deleted, and the stack's do not"
    return (problem if refuses else "", "")


def _is_refused(value: str, policy: Policy) -> bool:
    is_listed = not policy.allowed or value in policy.allowed
    return policy.denies_all or value in policy.denied or not is_listed


def _refused_images(project: str, cluster: ClusterConfig, policy: Policy) -> list[str]:
    """Return the projects of pools' images that a policy refuses by name.

    Whether a policy for folders or organizations refuses them cannot be determined here.
    """
    if any(name.startswith("under:") for name in policy.allowed):
        return []
    used = {
        _image_project(project, provider.boot_disk_source_image or IMAGE_DEFAULT)
        for _, provider in gcp_pools(cluster)
    }
    return sorted(name for name in used if _is_refused(name, policy))


def _image_project(project: str, image: str) -> str:
    """Return projects/ID of the project that an image is in; a path without one is in `project`."""
    _, found, path = image.partition("projects/")
    return f"projects/{path.partition('/')[0] if found else project}"


def _is_shielded(provider: object) -> bool:
    options = getattr(provider, "base_config", {}).get("shieldedInstanceConfig") or {}
    return options.get("enableSecureBoot") is True and all(
        options.get(name, True) is True for name in _SHIELDED
    )


def _location_problem(settings: Settings, policy: Policy) -> tuple[str, str]:
    """Return the regions that a policy of locations refuses by name."""
    remedy = "use a region that it allows"
    used = {settings.region, *settings.subnetwork_regions}
    denied = sorted(
        used & {name.removeprefix("in:").removesuffix("-locations") for name in policy.denied}
    )
    if denied:
        return f"{', '.join(denied)} are not allowed", remedy
    allowed = {name.removeprefix("in:").removesuffix("-locations") for name in policy.allowed}
    # Groups such as `us` or `europe` have the regions whose names begin so.
    refused = sorted(name for name in used if not any(_is_within(name, group) for group in allowed))
    problem = f"{', '.join(refused)} are not allowed" if allowed and refused else ""
    return problem, remedy


def _is_within(region: str, group: str) -> bool:
    continents = {"eu": "europe", "us": "us", "asia": "asia"}
    return region == group or region.startswith(f"{continents.get(group, group)}-")


_WHERE_ENFORCED: Final = {
    "iam.disableServiceAccountCreation": "no service account can be made",
    "run.managed.requireInvokerIam": (
        "the API, which knows its callers by their own tokens, would be unreachable"
    ),
}
_PROBLEM_FINDERS: Final[Mapping[str, Callable[[Settings, Policy], tuple[str, str]]]] = {
    "cloudbuild.allowedWorkerPools": _build_problem,
    "compute.vmExternalIpAccess": _address_problem,
    "gcp.resourceLocations": _location_problem,
    "gcp.restrictNonCmekServices": _key_problem,
    "gcp.restrictServiceUsage": _service_problem,
    "run.allowedIngress": _ingress_problem,
    "storage.softDeletePolicySeconds": _soft_delete_problem,
}
