"""Facts about an AWS account that a deployment depends on. `account_reader` reads them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from infra.findings import Unknown

Clients = Callable[[str], Any]
"""Function that returns the SDK client of a service, by the service's name like `ec2`."""


@dataclass(frozen=True)
class Caller:
    """The identity of the deployer."""

    account: str
    """The account's id of 12 digits."""
    arn: str
    """The ARN of the user, of the session of a role, or of the account's root user."""


@dataclass(frozen=True)
class TypeFacts:
    """An instance type as EC2 describes it."""

    vcpus: int
    """The default number of vCPUs."""
    architectures: frozenset[str]
    """Such as `x86_64`."""
    gpus: tuple[tuple[str, str], ...] = ()
    """Maker and model of each kind of GPU."""
    markets: frozenset[str] = frozenset({"on-demand", "spot"})
    """EC2's usage classes: `spot`, `on-demand`, `capacity-block`."""
    gpu_count: int = 0
    """0 if the type has no GPU or EC2 reports no count."""
    memory_mib: int = 0
    """0 if EC2 reports no memory."""
    store_gb: int = 0
    """The total size of the local disks, 0 without any."""
    network: str = ""
    """The network speed in EC2's words."""


@dataclass(frozen=True)
class DiskKey:
    """The account's default key for encrypting disks."""

    key: str
    """The ARN or the alias of the key."""
    is_own: bool
    """Whether the account created the key, instead of AWS."""


@dataclass(frozen=True)
class Concurrency:
    """The numbers of concurrent function runs that Lambda allows in a region."""

    limit: int
    """The most runs of the account."""
    unreserved: int
    """The runs of `limit` that no function has reserved."""
    reserved_here: int = 0
    """The runs of `limit` that this stack's functions have reserved already."""


@dataclass(frozen=True)
class NetworkCount:
    """The number of networks (VPCs) that the account has in the region."""

    count: int
    """The VPCs in the region, of all owners in the account."""
    limit: float
    """The quota of networks."""
    has_own: bool = False
    """Whether the stack's own network exists."""


@dataclass(frozen=True)
class DryRun:
    """EC2's answer to a request with DryRun: an error code and a message.

    The code is `DryRunOperation` if the request would have succeeded.
    """

    code: str
    """EC2's error code."""
    message: str = ""
    """EC2's text, without the encoded part; empty if the request would have succeeded."""
    statement: str = ""
    """The decoded reason of a denial: the denied action, the resource and the statement.

    "" without an encoded message, or if the message could not be decoded.
    """
    decoding_refused: bool = False
    """Whether EC2's message has an encoded part that the deployer may not decode."""


@dataclass(frozen=True)
class DryLaunch:
    """EC2's answers to the requests with which the tick would launch an offering of a pool."""

    pool: str
    """The name of the pool."""
    offering: str
    """The instance type and the market in EC2's words, such as `g5.xlarge spot`."""
    answers: Mapping[str, DryRun | Unknown]
    """The answer to each operation with DryRun, such as `RunInstances`."""
    left_out: tuple[str, ...] = ()
    """The parts of the launch that the stack has not created yet, such as `the subnet`."""


@dataclass(frozen=True)
class PublicAccess:
    """The setting VPC Block Public Access of an account in a region."""

    mode: str
    """`off`, `block-ingress` or `block-bidirectional`."""
    exclusions: frozenset[str] = frozenset()
    """The ids of excluded VPCs and subnets."""
    exclusions_allowed: bool = True
    """Whether the organization allows exclusions."""
    vpc: str = ""
    """The id of the instances' VPC; empty if the stack has not created its VPC yet."""


@dataclass(frozen=True)
class OwnBucket:
    """A bucket of the team that the cluster configuration names for checkpoints."""

    name: str
    """The name of the bucket."""
    keeps_versions: bool
    """Whether the bucket keeps deleted and replaced objects as versions."""
    deletes_versions: bool = False
    """Whether a lifecycle rule deletes old versions."""


@dataclass(frozen=True)
class ImageRules:
    """The setting Allowed AMIs of an account in a region."""

    state: str
    """`enabled`, `audit-mode` or `disabled`."""
    refused: frozenset[str] = frozenset()
    """The ids of images of the pools that the criteria of the setting refuse."""


@dataclass(frozen=True)
class KeyFacts:
    """The KMS key of the setting `kmsKey`."""

    state: str
    """KMS's state of the key, such as `Enabled`."""
    services: frozenset[str]
    """The AWS services that the key's policy allows to use the key."""


@dataclass(frozen=True)
class Interface:
    """A network interface of a file system."""

    vpc: str
    """The id of the VPC."""
    zone: str
    """The availability zone."""
    groups: frozenset[str]
    """The ids of the interface's security groups."""


@dataclass(frozen=True)
class FileSystemFacts:
    """A file system that pools mount."""

    interfaces: tuple[Interface, ...]
    """The network interfaces through which the file system is mounted; () without any."""
    mount_name: str = ""
    """The mount name of a Lustre file system; empty for EFS."""


@dataclass(frozen=True)
class Rule:
    """A rule of a security group that allows incoming connections."""

    protocol: str
    """EC2's protocol, such as `tcp`; `-1` for all protocols."""
    first_port: int
    last_port: int
    """Inclusive."""
    groups: frozenset[str] = frozenset()
    """The ids of the security groups that may connect."""
    blocks: tuple[str, ...] = ()
    """The IPv4 address blocks (CIDR) that may connect."""
    has_lists: bool = False
    """Whether prefix lists may connect too; their content is not read."""


@dataclass(frozen=True)
class NetworkFacts:
    """The network of instances, and the rules of file systems' security groups."""

    vpc: str
    """The id of the VPC. Empty if the stack has not created its VPC yet."""
    group: str
    """The id of the instances' security group; empty if the stack has not created it yet."""
    blocks: tuple[str, ...] = ()
    """The address blocks (CIDR) of the instances' subnets."""
    rules: Mapping[str, tuple[Rule, ...]] = field(default_factory=dict)
    """The incoming rules of each security group that a file system has, by the group's id."""


@dataclass(frozen=True, kw_only=True)
class PoolFacts:
    """Facts about an account in a region that pools depend on; Unknown if a read failed."""

    quotas: Mapping[str, float | Unknown]
    """The vCPUs of each quota, by the quota's code."""
    types: Mapping[str, TypeFacts] | Unknown
    """The pools' instance types, without types that the region does not offer."""
    zones: Mapping[str, frozenset[str]] | Unknown
    """The zones that offer each instance type."""
    disk_key: DiskKey | Unknown
    image: str | Unknown
    """The id of the default image; empty if its SSM parameter does not exist."""
    image_architectures: Mapping[str, str] | Unknown
    """The architecture of each image that pools name, without missing images."""
    launches: tuple[DryLaunch, ...] | Unknown
    """EC2's answers to the launches of all offerings with DryRun."""
    public_access: PublicAccess | Unknown = field(default_factory=lambda: PublicAccess("off"))
    image_rules: ImageRules | Unknown = field(default_factory=lambda: ImageRules("disabled"))
    file_systems: Mapping[str, FileSystemFacts | Unknown | None] = field(default_factory=dict)
    """The file systems that pools mount, by id; None for a missing file system."""
    network: NetworkFacts | Unknown | None = None
    """The network of instances; None if no pool mounts a file system."""
    plan: str | Unknown = ""
    """The account's plan, `FREE` or `PAID`; empty for older accounts without a plan."""


@dataclass(frozen=True, kw_only=True)
class AccountFacts(PoolFacts):
    """Facts about an account that a stack depends on; Unknown if a read failed."""

    caller: Caller | Unknown
    denied: tuple[str, ...] | Unknown
    """The actions of the deployer's policy that IAM denies to the caller.

    IAM was asked about a single example resource for each statement of the policy.
    """
    concurrency: Concurrency | Unknown
    key: KeyFacts | Unknown | None = None
    """The key of the setting `kmsKey`; None without this setting."""
    has_spot_role: bool | Unknown = True
    """Whether the account has the service role of EC2's spot market.

    Read only with `kmsKey` or pools on the spot market.
    """
    networks: NetworkCount | Unknown | None = None
    """None if the stack uses existing subnets and creates no network."""
    own_bucket: OwnBucket | Unknown | None = None
    """The team's bucket of checkpoints; None if the cluster uses the stack's own bucket."""
