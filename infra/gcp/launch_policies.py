"""Checks of organization policies against the launch requests of pools. Pure.

Compute Engine has no dry run of a launch. The rules are those of Google's list of constraints. A
rule that cannot be decided from the request, for example because it depends on a folder, is a
warning.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from infra.findings import Finding, Level
from infra.gcp.account_facts import Policy
from infra.gcp.pool_launches import PoolLaunch

IMAGES: Final = "compute.trustedImageProjects"
SHIELDED: Final = "compute.requireShieldedVm"
EXCEPTION: Final = "ask the manager of the organization's policies for an exception"
_SHIELDED_OPTIONS: Final = ("enableSecureBoot", "enableVtpm", "enableIntegrityMonitoring")
_TRUE: Final = ("true", "y", "yes", "1")


class Verdict(NamedTuple):
    """The judgement of a policy on a launch request or a resource."""

    text: str
    """The refused part of the request and its value."""
    remedy: str
    """The user's next step."""
    is_certain: bool = True
    """Whether the policy refuses the launch, or only may refuse it."""


Rule = Callable[[PoolLaunch, Policy], Verdict | None]
"""Returns the verdict of a policy on a request; None if the policy refuses nothing."""


def check_launches(name: str, policy: Policy, launches: Sequence[PoolLaunch]) -> Iterator[Finding]:
    """Yield a finding for each kind of refusal of the policy with the constraint `name`.

    The finding names the pools. A refusal is an error, and a possible refusal a warning. Yield
    nothing if the policy refuses no launch, or if no rule for the constraint exists.
    """
    rule = LAUNCH_RULES.get(name)
    if rule is None or not policy.restricts:
        return
    pools: dict[Verdict, list[str]] = {}
    for launch in launches:
        if launch.problem:
            text = f"cannot tell whether it refuses launches: {launch.problem}"
            verdict: Verdict | None = Verdict(text, "correct the pool", is_certain=False)
        else:
            verdict = rule(launch, policy)
        if verdict is not None:
            pools.setdefault(verdict, []).append(launch.pool)
    for verdict, refused in pools.items():
        level = Level.ERROR if verdict.is_certain else Level.WARNING
        text = f"{verdict.text}: pools {', '.join(dict.fromkeys(refused))}"
        yield Finding(level, f"policy {name}", text, verdict.remedy)


def _check_addresses(launch: PoolLaunch, policy: Policy) -> Verdict | None:
    """Refuse public addresses: the values are names of instances, which nobody knows before."""
    interfaces = launch.properties.get("networkInterfaces", ())
    has_address = any(
        item.get("accessConfigs") or item.get("ipv6AccessConfigs") for item in interfaces
    )
    refuses = policy.is_enforced or policy.denies_all or policy.allowed
    if not (has_address and refuses):
        return None
    return Verdict(
        "instances get no public address",
        "set detcloud:privateSubnets: true; for a network of the pool's own, set "
        "provider.network_interface.external_ip: false and remove accessConfigs from "
        f"provider.base_config.networkInterfaces; or {EXCEPTION}",
    )


def _check_forwarding(launch: PoolLaunch, policy: Policy) -> Verdict | None:
    """Refuse `canIpForward`: the values are names of instances, which nobody knows before."""
    refuses = policy.is_enforced or policy.denies_all or policy.allowed
    if not (launch.properties.get("canIpForward") and refuses):
        return None
    return Verdict(
        "instances may not forward packets (canIpForward: true)",
        "remove canIpForward from provider.base_config",
    )


def _check_shielded(launch: PoolLaunch, policy: Policy) -> Verdict | None:
    """Refuse machines without secure boot, or with a protection turned off."""
    options = launch.properties.get("shieldedInstanceConfig") or {}
    is_shielded = options.get("enableSecureBoot") is True and all(
        options.get(name, True) is True for name in _SHIELDED_OPTIONS
    )
    if is_shielded or not policy.is_enforced:
        return None
    wanted = ", ".join(f"{name}: true" for name in _SHIELDED_OPTIONS)
    return Verdict(
        "instances without secure boot are refused",
        f"set provider.base_config: {{shieldedInstanceConfig: {{{wanted}}}}}",
    )


def _check_nesting(launch: PoolLaunch, policy: Policy) -> Verdict | None:
    """Refuse nested virtualization."""
    features = launch.properties.get("advancedMachineFeatures") or {}
    if not (policy.is_enforced and features.get("enableNestedVirtualization")):
        return None
    return Verdict(
        "nested virtualization is refused (enableNestedVirtualization: true)",
        "remove enableNestedVirtualization from provider.base_config.advancedMachineFeatures",
    )


def _check_confidential(launch: PoolLaunch, policy: Policy) -> Verdict | None:
    """Refuse instances that are not confidential, if Compute Engine is denied."""
    options = launch.properties.get("confidentialInstanceConfig") or {}
    is_confidential = bool(
        options.get("enableConfidentialCompute") or options.get("confidentialInstanceType")
    )
    is_denied = _names_service(policy, "compute")
    if is_confidential or not (is_denied or policy.is_enforced or policy.denies_all):
        return None
    return Verdict(
        "only confidential VMs are allowed",
        f"set provider.base_config.confidentialInstanceConfig on a type that supports it, or "
        f"{EXCEPTION}",
    )


def _check_keys(launch: PoolLaunch, policy: Policy) -> Verdict | None:
    """Refuse disks without a customer-managed key, if Compute Engine is denied."""
    disks = launch.properties.get("disks", ())
    has_keys = all((disk.get("diskEncryptionKey") or {}).get("kmsKeyName") for disk in disks)
    if has_keys or not (_names_service(policy, "compute") or policy.denies_all):
        return None
    return Verdict(
        "disks of instances need a customer-managed key",
        "set detcloud:kmsKey, and diskEncryptionKey.kmsKeyName of the disks in "
        "provider.base_config",
    )


def _check_key_projects(launch: PoolLaunch, policy: Policy) -> Verdict | None:
    """Refuse keys of projects that are not allowed."""
    names = {
        str((disk.get("diskEncryptionKey") or {}).get("kmsKeyName", ""))
        for disk in launch.properties.get("disks", ())
    }
    projects = sorted({_project_of(name, launch.project) for name in names if name})
    return _check_projects(projects, policy, "keys", "use a key of an allowed project")


def _check_images(launch: PoolLaunch, policy: Policy) -> Verdict | None:
    """Refuse images of projects that are not allowed."""
    images = [
        str((disk.get("initializeParams") or {}).get("sourceImage", ""))
        for disk in launch.properties.get("disks", ())
    ]
    projects = sorted({_project_of(image, launch.project) for image in images if image})
    remedy = "set provider.boot_disk_source_image to an image of an allowed project"
    return _check_projects(projects, policy, "images", remedy)


def _check_shared_subnetworks(launch: PoolLaunch, policy: Policy) -> Verdict | None:
    """Refuse subnetworks of other projects that are not allowed."""
    paths = [
        str(item.get("subnetwork", "")) for item in launch.properties.get("networkInterfaces", ())
    ]
    shared = [
        path[path.index("projects/") :]
        for path in paths
        if "projects/" in path and _project_of(path, launch.project) != f"projects/{launch.project}"
    ]
    refused = [
        path
        for path in shared
        if policy.denies_all
        or path in policy.denied
        or (policy.allowed and path not in policy.allowed)
    ]
    if not refused:
        return None
    listed = ", ".join(refused)
    groups = [value for value in (*policy.allowed, *policy.denied) if value.startswith("under:")]
    if groups and not policy.denies_all:
        text = f"cannot tell whether {listed} may be used: the policy names {', '.join(groups)}"
        return Verdict(text, "compare the projects of the subnetworks with these", is_certain=False)
    return Verdict(f"{listed} may not be used", "use a subnetwork that the policy allows")


def _check_locations(launch: PoolLaunch, policy: Policy) -> Verdict | None:
    """Refuse regions and zones that are not allowed."""
    zones = sorted(value for value in policy.allowed if value.startswith(f"{launch.region}-"))
    verdict = location_verdict(launch.zone or launch.region, launch.region, policy)
    if verdict is not None and zones and not launch.zone:
        text = f"only {', '.join(zones)} of {launch.region} are allowed, and the pool uses any zone"
        return Verdict(text, "name one of these zones in provider.zone")
    return verdict


def location_verdict(place: str, region: str, policy: Policy) -> Verdict | None:
    """Return the verdict of a policy of locations on a region, or on a zone of the region."""
    if policy.denies_all or any(_covers(value, place, region) for value in policy.denied):
        return Verdict(f"{place} is not allowed", "use a region that the policy allows")
    groups = sorted(value for value in policy.allowed if _is_unknown_group(value))
    unclear = sorted(value for value in policy.denied if _is_unknown_group(value))
    if not policy.allowed or any(_covers(value, place, region) for value in policy.allowed):
        groups = []
        if not unclear:
            return None
    groups = groups or unclear
    if groups:
        text = f"cannot tell whether {place} is in {', '.join(groups)}"
        return Verdict(text, "compare the region with Google's value groups", is_certain=False)
    return Verdict(f"{place} is not allowed", "use a region that the policy allows")


def _metadata_rule(key: str, *, refuses: bool, default_matters: bool = False) -> Rule:
    """Return the rule of a constraint on a key of the metadata.

    Args:
        key: the key, such as `enable-oslogin`.
        refuses: the refused value: true or false.
        default_matters: whether a request without the key may be refused, because the project's own
            metadata count then.
    """

    def check(launch: PoolLaunch, policy: Policy) -> Verdict | None:
        items = (launch.properties.get("metadata") or {}).get("items", ())
        values = [item["value"] for item in items if item["key"] == key]
        wanted = "FALSE" if refuses else "TRUE"
        place = f"{key} in provider.base_config.metadata"
        if not policy.is_enforced:
            return None
        if values and (str(values[-1]).lower() in _TRUE) is refuses:
            text = f"instances with the metadata {key}: {values[-1]} are refused"
            return Verdict(text, f"set {place} to {wanted}, or remove the key")
        if not values and default_matters:
            text = f"cannot tell what the project's metadata have for {key}"
            return Verdict(text, f"set {place} to {wanted}", is_certain=False)
        return None

    return check


def _check_projects(
    projects: Sequence[str], policy: Policy, what: str, remedy: str
) -> Verdict | None:
    """Refuse projects, as projects/ID, that a policy denies or does not allow.

    If the policy names folders or organizations, other projects may belong to them: the verdict is
    not certain then.
    """
    denied = [name for name in projects if policy.denies_all or _lists(policy.denied, name)]
    unlisted = [name for name in projects if policy.allowed and not _lists(policy.allowed, name)]
    refused = list(dict.fromkeys([*denied, *unlisted]))
    groups = sorted(
        value
        for value in (*policy.allowed, *policy.denied)
        if value.startswith(("under:folders/", "under:organizations/"))
    )
    if denied or (refused and not groups):
        return Verdict(f"no instance may have {what} of {', '.join(refused)}", remedy)
    if groups and (refused or policy.denied):
        text = f"cannot tell whether {', '.join(projects)} may be used for {what}: the policy names"
        return Verdict(f"{text} {', '.join(groups)}", remedy, is_certain=False)
    return None


def _lists(values: frozenset[str], project: str) -> bool:
    """Return whether a policy's values contain the project, as projects/ID."""
    return bool({project, f"under:{project}"} & values)


def _project_of(path: str, own: str) -> str:
    """Return projects/ID for the project in a path; without a project, `own`."""
    _, found, rest = path.partition("projects/")
    return f"projects/{rest.partition('/')[0] if found else own}"


def _names_service(policy: Policy, service: str) -> bool:
    """Return whether a policy denies a Google API, or allows only others."""
    name = f"{service}.googleapis.com"
    return name in policy.denied or bool(policy.allowed and name not in policy.allowed)


def _covers(value: str, place: str, region: str) -> bool:
    """Return whether a location of a policy contains a zone or region.

    Of Google's value groups, the regions and the groups whose names begin the region's name are
    known: `in:us-central1-locations`, `in:us-locations` and `in:europe-locations`.
    """
    if not value.startswith("in:"):
        return value in (place, region)
    group = value.removeprefix("in:").removesuffix("-locations")
    continents = {"eu": "europe"}
    name = continents.get(group, group)
    return name in (place, region) or region.startswith(f"{name}-")


def _is_unknown_group(value: str) -> bool:
    """Return whether a location is a value group that the check does not know.

    Known groups are regions, and continents or countries that begin the names of regions.
    """
    known = ("africa", "asia", "australia", "eu", "europe", "me", "northamerica", "southamerica")
    group = value.removeprefix("in:").removesuffix("-locations")
    is_region = any(character.isdigit() for character in group)
    return value.startswith("in:") and not is_region and group not in (*known, "us")


_NO_OS_LOGIN: Final = _metadata_rule("enable-oslogin", refuses=False)
_NO_SERIAL_PORT: Final = _metadata_rule("serial-port-enable", refuses=True)
_NO_ATTRIBUTES: Final = _metadata_rule("enable-guest-attributes", refuses=True)
LAUNCH_RULES: Final[Mapping[str, Rule]] = {
    "compute.disableGuestAttributesAccess": _NO_ATTRIBUTES,
    "compute.disableNestedVirtualization": _check_nesting,
    "compute.disableSerialPortAccess": _NO_SERIAL_PORT,
    "compute.managed.disableGuestAttributesAccess": _NO_ATTRIBUTES,
    "compute.managed.disableNestedVirtualization": _check_nesting,
    "compute.managed.disableSerialPortAccess": _NO_SERIAL_PORT,
    "compute.managed.requireOsConfig": _metadata_rule(
        "enable-osconfig", refuses=False, default_matters=True
    ),
    "compute.managed.requireOsLogin": _metadata_rule(
        "enable-oslogin", refuses=False, default_matters=True
    ),
    "compute.managed.restrictNonConfidentialComputing": _check_confidential,
    "compute.managed.vmCanIpForward": _check_forwarding,
    "compute.managed.vmExternalIpAccess": _check_addresses,
    "compute.requireOsConfig": _metadata_rule("enable-osconfig", refuses=False),
    "compute.requireOsLogin": _NO_OS_LOGIN,
    SHIELDED: _check_shielded,
    "compute.restrictNonConfidentialComputing": _check_confidential,
    "compute.restrictSharedVpcSubnetworks": _check_shared_subnetworks,
    IMAGES: _check_images,
    "compute.vmCanIpForward": _check_forwarding,
    "compute.vmExternalIpAccess": _check_addresses,
    "gcp.resourceLocations": _check_locations,
    "gcp.restrictCmekCryptoKeyProjects": _check_key_projects,
    "gcp.restrictNonCmekServices": _check_keys,
}
