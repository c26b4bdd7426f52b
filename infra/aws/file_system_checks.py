"""Checks whether a pool's instances can reach the mounted file systems. Pure.

Sources: EFS user guide, "Managing mount targets" (all mount targets are in one VPC, one in each
zone; the file system's name resolves only in that VPC, to the target in the caller's zone) and
"Using VPC security groups"; FSx for Lustre user guide, "File system access control with Amazon
VPC" (ports 988 and 1018 to 1023).
"""

from collections.abc import Iterator
from ipaddress import IPv4Network

from control_plane.aws.pool_provider import AwsProvider, FileSystem
from control_plane.config.pools import ClusterConfig
from infra.aws.account_facts import FileSystemFacts, Interface, NetworkFacts, PoolFacts
from infra.aws.pool_checks import aws_pools, offerings_of, zones_in_use
from infra.aws.settings import Settings
from infra.findings import Finding, Level, Unknown

PORTS = {"efs": ((2049, 2049),), "fsx_lustre": ((988, 988), (1018, 1023))}
_PROTOCOLS = frozenset({"-1", "tcp", "6"})


def find_file_system_problems(
    settings: Settings, cluster: ClusterConfig, facts: PoolFacts
) -> Iterator[Finding]:
    """Yield a finding for each file system of each pool on AWS.

    Yield nothing without file systems. The finding is a warning if the file system or the network
    is Unknown, and an error if the file system does not exist. Otherwise the finding is fine, or
    names the first obstacle that keeps instances from mounting the file system.
    """
    for name, provider in aws_pools(cluster):
        for wanted in provider.file_systems:
            subject = f"pool {name}, {wanted.id}"
            found = facts.file_systems.get(wanted.id)
            unknown = next(
                (item for item in (found, facts.network) if isinstance(item, Unknown)), None
            )
            if unknown is not None:
                text = f"could not be checked: {unknown.why}"
                yield Finding(Level.WARNING, subject, text, f"the check needs {unknown.needs}")
            elif not isinstance(found, FileSystemFacts):
                text = f"{settings.region} has no file system of this account with this id and type"
                remedy = "correct the id or the `type`, or use a file system of this region"
                yield Finding(Level.ERROR, subject, text, remedy)
            else:
                assert isinstance(facts.network, NetworkFacts)
                zones = _zones(settings, provider)
                yield _check_reachability(settings, subject, wanted, found, facts.network, zones)


def _zones(settings: Settings, provider: AwsProvider) -> tuple[str, ...]:
    """Return the sorted zones in which the pool's instances may be, without duplicates.

    If an offering names no zone, return all zones with subnets of the stack.
    """
    named = [offering_config.zone for offering_config in offerings_of(provider)]
    return zones_in_use(settings) if "" in named else tuple(sorted(set(named)))


def _check_reachability(
    settings: Settings,
    subject: str,
    wanted: FileSystem,
    found: FileSystemFacts,
    network: NetworkFacts,
    zones: tuple[str, ...],
) -> Finding:
    """Return a finding about the first obstacle to mounting the file system, or a fine finding.

    Check the mount name, then VPC and zones, then the ports of the file system's security groups.
    `zones` are the zones in which the pool's instances may be.
    """
    if wanted.mount_name != found.mount_name:
        text = f"its mount name is {found.mount_name}, but mount_name is {wanted.mount_name}"
        return Finding(Level.ERROR, subject, text, f"set mount_name: {found.mount_name}")
    if problem := _place_problem(settings, subject, wanted, found, network, zones):
        return problem
    unknown = None
    for interface in found.interfaces:
        if wanted.type == "efs" and interface.zone not in zones:
            continue
        closed = _closed_ports(wanted, interface, network, with_lists=True)
        if not closed and _closed_ports(wanted, interface, network, with_lists=False):
            groups = ", ".join(sorted(interface.groups))
            text = (
                f"could not be checked: in {interface.zone} its security group, {groups}, allows "
                "prefix lists, whose content is not read"
            )
            remedy = "check that a list contains the addresses of the instances' subnets"
            unknown = Finding(Level.WARNING, subject, text, remedy)
        if closed:
            ports = " and ".join(f"{a}" if a == b else f"{a} to {b}" for a, b in closed)
            groups = ", ".join(sorted(interface.groups))
            text = (
                f"in {interface.zone} its security group, {groups}, does not allow instances in at "
                f"TCP {ports}"
            )
            source = network.group or "the instances' group"
            return Finding(
                Level.ERROR, subject, text, f"add a rule for {source} to the security group"
            )
    return unknown or Finding(Level.FINE, subject, f"reached from {', '.join(zones)}")


def _place_problem(
    settings: Settings,
    subject: str,
    wanted: FileSystem,
    found: FileSystemFacts,
    network: NetworkFacts,
    zones: tuple[str, ...],
) -> Finding | None:
    """Return a finding if VPC or zones keep instances from the file system; None otherwise.

    Missing mount targets are a warning before the first deployment. A file system of Lustre in
    another VPC is a warning if the setting `network` is set, and all else an error.
    """
    make = (
        f"`aws efs create-mount-target --file-system-id {wanted.id}` with a subnet of the stack's "
        "in each of these zones and the stack's security group"
    )
    vpcs = sorted({interface.vpc for interface in found.interfaces})
    if not vpcs:
        # A mount target needs a subnet of the stack, which the first deployment creates.
        level = Level.ERROR if network.vpc else Level.WARNING
        text = f"it has no mount target, so instances in {', '.join(zones)} cannot mount it"
        return Finding(level, subject, text, f"{make}, once the stack is deployed")
    if network.vpc not in vpcs:
        own = network.vpc or "a VPC of their own that the stack will make"
        text = f"it is in {', '.join(vpcs)}, and instances are in {own}"
        # Lustre can be reached over a VPC peering that the stack does not know.
        is_peered = wanted.type != "efs" and settings.network is not None
        remedy = "name subnets and the security group of its VPC in detcloud:network"
        return Finding(Level.WARNING if is_peered else Level.ERROR, subject, text, remedy)
    without = [
        zone for zone in zones if zone not in {interface.zone for interface in found.interfaces}
    ]
    if without and wanted.type == "efs":
        text = f"it has no mount target in {', '.join(without)}, where instances may be"
        return Finding(Level.ERROR, subject, text, f"{make}, or leave these zones out")
    return None


def _closed_ports(
    wanted: FileSystem, interface: Interface, network: NetworkFacts, *, with_lists: bool
) -> list[tuple[int, int]]:
    """Return the required port ranges that no rule of the interface's groups opens.

    Return [] if all are open. A rule counts if it allows the instances' security group, address
    blocks that include all subnets of the instances, or, `with_lists`, a prefix list.
    """
    rules = [rule for name in interface.groups for rule in network.rules.get(name, ())]
    open_to_us = [
        rule
        for rule in rules
        if rule.protocol in _PROTOCOLS
        and (
            network.group in rule.groups
            or (with_lists and rule.has_lists)
            or _covers(rule.blocks, network)
        )
    ]
    return [
        (first, last)
        for first, last in PORTS[wanted.type]
        if not any(item.first_port <= first and last <= item.last_port for item in open_to_us)
    ]


def _covers(blocks: tuple[str, ...], network: NetworkFacts) -> bool:
    """Return whether each subnet of the instances lies within a block.

    Return False if the network has no subnets yet.
    """
    given = [IPv4Network(block) for block in blocks]
    return bool(network.blocks) and all(
        any(IPv4Network(own).subnet_of(item) for item in given) for own in network.blocks
    )
