"""The facts of a project that a deployment depends on, as `account_reader` reads them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from infra.findings import Unknown


@dataclass(frozen=True)
class Project:
    """A project as Resource Manager has it."""

    number: str
    is_active: bool


@dataclass(frozen=True)
class TypeFacts:
    """A machine type as Compute Engine describes it, and the zones of a region that offer it.
    `gpus` and `accelerator` are those that it has itself; `architecture` is X86_64 or ARM64, or ""
    where nobody says.
    """

    vcpus: int
    memory_mb: int
    zones: frozenset[str]
    gpus: int = 0
    accelerator: str = ""
    architecture: str = ""


@dataclass(frozen=True)
class AcceleratorFacts:
    """The zones that offer an accelerator, and how many an instance there takes."""

    zones: frozenset[str]
    number_max: int


@dataclass(frozen=True)
class Policy:
    """A policy of the organization as it is in effect: whether it is enforced, and the values that
    it denies, or allows and no others; `denies_all` where it allows none.
    """

    is_enforced: bool = False
    denies_all: bool = False
    allowed: frozenset[str] = frozenset()
    denied: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class PoolFacts:
    """The facts of a project that its pools depend on, each of which may be Unknown.

    Attributes:
        quotas: by region, and "" for those of all regions together, limits by their metric.
        types: the machine types of the pools, by (region, type), of all regions that have them.
        accelerators: the accelerators of the pools, by their names.
        names: of each region that lacks a type of a pool, the names of the types that it has.
    """

    quotas: Mapping[str, Mapping[str, float] | Unknown]
    types: Mapping[tuple[str, str], TypeFacts] | Unknown
    accelerators: Mapping[str, AcceleratorFacts] | Unknown
    names: Mapping[str, frozenset[str]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ProjectFacts(PoolFacts):
    """The facts of a project that a stack depends on, each of which may be Unknown.

    Attributes:
        project: itself.
        is_billed: whether a billing account pays for it.
        disabled_services: of the interfaces that the stack needs, those that are not enabled.
        denied: of the deployer's role, the permissions that the caller has not.
        denied_at: of what a deployment does at subnetworks of other projects, the permissions that
            the caller has not, by the path of the subnetwork.
        policies: of the organization, by the name of the constraint.
    """

    project: Project | Unknown
    is_billed: bool | Unknown
    disabled_services: tuple[str, ...] | Unknown
    denied: tuple[str, ...] | Unknown
    policies: Mapping[str, Policy | Unknown]
    denied_at: Mapping[str, tuple[str, ...] | Unknown] = field(default_factory=dict)
