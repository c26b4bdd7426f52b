"""Facts about a project that a deployment depends on. `account_reader` reads them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from infra.findings import Unknown


@dataclass(frozen=True)
class Project:
    """A project of Google Cloud."""

    number: str
    """The project's number."""
    is_active: bool
    """Whether the project is not scheduled for deletion."""


@dataclass(frozen=True)
class TypeFacts:
    """Compute Engine's description of a machine type in a region."""

    vcpus: int
    """The number of vCPUs."""
    memory_mb: int
    """The memory in MiB."""
    zones: frozenset[str]
    """The zones of the region that offer the type."""
    gpus: int = 0
    """The number of built-in GPUs, without attached ones."""
    accelerator: str = ""
    """The name of the built-in GPUs; empty without any."""
    architecture: str = ""
    """`X86_64` or `ARM64`; empty if Compute Engine reports no architecture."""


@dataclass(frozen=True)
class AcceleratorFacts:
    """A type of GPU that can be attached to instances."""

    zones: frozenset[str]
    """The zones that offer the accelerator."""
    number_max: int
    """The maximum number for an instance, over all zones."""


@dataclass(frozen=True)
class Policy:
    """An organization policy in effect for a project; without rules, everything is allowed."""

    is_enforced: bool = False
    """Whether the constraint is enforced, if the constraint has no values."""
    denies_all: bool = False
    """Whether no value is allowed."""
    allowed: frozenset[str] = frozenset()
    """The only allowed values, if there are any."""
    denied: frozenset[str] = frozenset()
    """The denied values."""
    has_conditions: bool = False
    """Whether a rule depends on a condition, such as a tag of an instance. Such rules are left out
    of the other fields.
    """

    @property
    def restricts(self) -> bool:
        """Whether the policy restricts anything without a condition."""
        return bool(self.is_enforced or self.denies_all or self.allowed or self.denied)


@dataclass(frozen=True)
class CustomConstraint:
    """A custom constraint that is enforced for a project."""

    name: str
    """The name, which begins with `custom.`."""
    types: tuple[str, ...] = ()
    """The types of resources, such as `compute.googleapis.com/Instance`; empty if unknown."""
    rule: str = ""
    """The action and the condition, in Google's words; empty if unknown."""


@dataclass(frozen=True)
class CustomConstraints:
    """The custom constraints that are enforced for a project."""

    enforced: tuple[CustomConstraint, ...] = ()
    """The enforced constraints that could be found."""
    unread: Mapping[str, Unknown] = field(default_factory=dict)
    """The parts that could not be read, such as `folders/1`, with the reason."""


@dataclass(frozen=True, kw_only=True)
class PoolFacts:
    """Facts about a project that pools depend on; Unknown if a read failed."""

    quotas: Mapping[str, Mapping[str, float] | Unknown]
    """The quotas by region: the most that the project may use of each metric, for example `CPUS`.

    The region "" has the quotas over all regions.
    """
    types: Mapping[tuple[str, str], TypeFacts] | Unknown
    """The pools' machine types, by (region, name), in all regions that offer them."""
    accelerators: Mapping[str, AcceleratorFacts] | Unknown
    """The pools' accelerators, by name; accelerators that no zone offers are left out."""
    names: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """The names of all machine types in each region that lacks a pool's type."""


@dataclass(frozen=True, kw_only=True)
class ProjectFacts(PoolFacts):
    """Facts about a project that a stack depends on; Unknown if a read failed."""

    project: Project | Unknown
    is_billed: bool | Unknown
    """Whether a billing account pays for the project."""
    disabled_services: tuple[str, ...] | Unknown
    """The Google APIs that the stack needs and the project has not enabled."""
    denied: tuple[str, ...] | Unknown
    """The permissions of the deployer's role that the caller lacks."""
    policies: Mapping[str, Policy | Unknown]
    """The organization's policies, by the constraint's name."""
    custom: CustomConstraints | Unknown = CustomConstraints()
    """The custom constraints of the organization."""
    denied_at: Mapping[str, tuple[str, ...] | Unknown] = field(default_factory=dict)
    """The permissions that the caller lacks at subnetworks of other projects, by their path."""
