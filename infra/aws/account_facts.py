"""The facts of an AWS account that a deployment depends on, as `account_reader` reads them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from infra.findings import Unknown

Clients = Callable[[str], Any]
"""Returns the client of a service in the stack's region, as boto3 has it."""


@dataclass(frozen=True)
class Caller:
    """The identity of the deployer."""

    account: str
    arn: str


@dataclass(frozen=True)
class TypeFacts:
    """An instance type as EC2 describes it. `gpus`: the maker and the model of each kind;
    `markets`: `spot`, `on-demand`, `capacity-block`; `gpu_count` is 0 where it has none or EC2 says
    nothing, `store_gb` the size of its own disks, and `network` its speed in EC2's words.
    """

    vcpus: int
    architectures: frozenset[str]
    gpus: tuple[tuple[str, str], ...] = ()
    markets: frozenset[str] = frozenset({"on-demand", "spot"})
    gpu_count: int = 0
    memory_mib: int = 0
    store_gb: int = 0
    network: str = ""


@dataclass(frozen=True)
class DiskKey:
    """The key with which EC2 encrypts disks for which no other is named; `is_own`: not AWS's."""

    key: str
    is_own: bool


@dataclass(frozen=True)
class Concurrency:
    """How many functions may run concurrently: in the account, of those for which none are
    reserved, and as many as this stack has reserved already.
    """

    limit: int
    unreserved: int
    reserved_here: int = 0


@dataclass(frozen=True)
class NetworkCount:
    """The networks (VPCs) of the account in the region: how many there are and may be, and whether
    the stack's own is among them.
    """

    count: int
    limit: float
    has_own: bool = False


@dataclass(frozen=True)
class DryRun:
    """EC2's answer to a launch that was not to be carried out: the code and the message."""

    code: str
    message: str


@dataclass(frozen=True)
class KeyFacts:
    """A key of the account's own: its state, and the services that its policy lets use it."""

    state: str
    services: frozenset[str]


@dataclass(frozen=True)
class Interface:
    """A network interface at which a file system is reached: its VPC, zone and security groups."""

    vpc: str
    zone: str
    groups: frozenset[str]


@dataclass(frozen=True)
class FileSystemFacts:
    """A file system that pools mount; `mount_name` is one of Lustre's."""

    interfaces: tuple[Interface, ...]
    mount_name: str = ""


@dataclass(frozen=True)
class Rule:
    """A rule by which a security group lets connections in: the ports, and from which groups and
    blocks of addresses; `has_lists`: also from lists of blocks, which are not looked into.
    """

    protocol: str
    first_port: int
    last_port: int
    groups: frozenset[str] = frozenset()
    blocks: tuple[str, ...] = ()
    has_lists: bool = False


@dataclass(frozen=True)
class NetworkFacts:
    """The network of instances: its VPC, "" where the stack has not made it yet, their security
    group and blocks of addresses; `rules` are those of the groups of file systems.
    """

    vpc: str
    group: str
    blocks: tuple[str, ...] = ()
    rules: Mapping[str, tuple[Rule, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PoolFacts:
    """The facts of an account in a region that its pools depend on, each of which may be Unknown.

    Attributes:
        quotas: vCPUs by the code of a quota.
        types: of the instance types of the pools, those that the region has.
        zones: by type, the zones that offer it.
        disk_key: the key of disks.
        image: the default image, "" if the parameter is not there.
        image_architectures: of the images that pools name, those that are there.
        dry_run: of a launch.
        file_systems: of those that pools mount, by id, None for one that is not there.
        network: of instances, None where no pool mounts anything.
        plan: of the account, `FREE` or `PAID`, "" where it has none, as older accounts.
    """

    quotas: Mapping[str, float | Unknown]
    types: Mapping[str, TypeFacts] | Unknown
    zones: Mapping[str, frozenset[str]] | Unknown
    disk_key: DiskKey | Unknown
    image: str | Unknown
    image_architectures: Mapping[str, str] | Unknown
    dry_run: DryRun | Unknown
    file_systems: Mapping[str, FileSystemFacts | Unknown | None] = field(default_factory=dict)
    network: NetworkFacts | Unknown | None = None
    plan: str | Unknown = ""


@dataclass(frozen=True, kw_only=True)
class AccountFacts(PoolFacts):
    """The facts of an account that a stack depends on, each of which may be Unknown.

    Attributes:
        caller: the deployer.
        denied: of the deployer's policy, the actions that the caller may not do.
        concurrency: of functions.
        key: of `kmsKey`, None where there is none.
        has_spot_role: whether EC2's spot market has its role in the account.
        networks: of the account, None where the stack makes none.
    """

    caller: Caller | Unknown
    denied: tuple[str, ...] | Unknown
    concurrency: Concurrency | Unknown
    key: KeyFacts | Unknown | None = None
    has_spot_role: bool | Unknown = True
    networks: NetworkCount | Unknown | None = None
