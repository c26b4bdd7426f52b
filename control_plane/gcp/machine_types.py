"""The catalogue of Compute Engine's machine types: their GPUs, vCPUs and memory.

The configuration counts slots with the catalogue before anything is launched, when no cloud can be
asked. The deployment of a pool stores Compute Engine's description of the pool's machine types,
`described`. Described types take precedence, and may be types that the catalogue lacks.

An instance type is the text of a machine type, followed by attached accelerators if the machine
type has no accelerators of its own: `a2-highgpu-4g`, `n1-standard-8+nvidia-tesla-t4:2`.

Source: Compute Engine's documentation, "Accelerator-optimized machine family", "N1 machine series"
and "GPU machine types", as of 2025-10.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from control_plane.fleet import gpu_models
from control_plane.fleet.gpu_models import GpuModel
from control_plane.scheduling.agent_needs import AgentDevice


class MachineType(NamedTuple):
    """The hardware of a machine type, without attached accelerators."""

    gpus: int
    vcpus: int
    memory_gb: float
    """The memory in GiB."""
    accelerator: str = ""
    """The kind of the GPUs, such as nvidia-l4; "" without GPUs."""


MachineTypes = Mapping[str, MachineType]
"""Machine types by name."""

NONE_DESCRIBED: Final[MachineTypes] = MappingProxyType({})


class InstanceType(NamedTuple):
    """A machine type with its attached accelerators."""

    machine_type: str
    accelerator: str = ""
    """The kind of the attached accelerators; "" without attached accelerators."""
    number: int = 0
    """The number of attached accelerators."""

    def __str__(self) -> str:
        return "+".join((self.machine_type, *([self.attachment] if self.number else [])))

    @property
    def attachment(self) -> str:
        """The attached accelerators as in configurations, such as `nvidia-tesla-t4:2`.

        The text is meaningless without attached accelerators.
        """
        return f"{self.accelerator}:{self.number}"

    @property
    def family(self) -> str:
        """The series of the machine type, such as n1."""
        return machine_series(self.machine_type)


def _types(
    family: str, accelerator: str, *sizes: tuple[str, int, int, float]
) -> dict[str, MachineType]:
    return {
        f"{family}-{size}": MachineType(gpus, vcpus, memory_gb, accelerator)
        for size, gpus, vcpus, memory_gb in sizes
    }


GPU_TYPES: Final[MachineTypes] = MappingProxyType(
    {
        **_types(
            "a2",
            "nvidia-tesla-a100",
            ("highgpu-1g", 1, 12, 85),
            ("highgpu-2g", 2, 24, 170),
            ("highgpu-4g", 4, 48, 340),
            ("highgpu-8g", 8, 96, 680),
            ("megagpu-16g", 16, 96, 1360),
        ),
        **_types(
            "a2",
            "nvidia-a100-80gb",
            ("ultragpu-1g", 1, 12, 170),
            ("ultragpu-2g", 2, 24, 340),
            ("ultragpu-4g", 4, 48, 680),
            ("ultragpu-8g", 8, 96, 1360),
        ),
        **_types(
            "a3",
            "nvidia-h100-80gb",
            ("highgpu-1g", 1, 26, 234),
            ("highgpu-2g", 2, 52, 468),
            ("highgpu-4g", 4, 104, 936),
            ("highgpu-8g", 8, 208, 1872),
            ("edgegpu-8g", 8, 208, 1872),
        ),
        **_types("a3", "nvidia-h100-mega-80gb", ("megagpu-8g", 8, 208, 1872)),
        **_types("a3", "nvidia-h200-141gb", ("ultragpu-8g", 8, 224, 2952)),
        **_types("a4", "nvidia-b200", ("highgpu-8g", 8, 224, 3968)),
        **_types(
            "g2",
            "nvidia-l4",
            ("standard-4", 1, 4, 16),
            ("standard-8", 1, 8, 32),
            ("standard-12", 1, 12, 48),
            ("standard-16", 1, 16, 64),
            ("standard-24", 2, 24, 96),
            ("standard-32", 1, 32, 128),
            ("standard-48", 4, 48, 192),
            ("standard-96", 8, 96, 384),
        ),
        **_types(
            "g4",
            "nvidia-rtx-pro-6000",
            ("standard-48", 1, 48, 180),
            ("standard-96", 2, 96, 360),
            ("standard-192", 4, 192, 720),
            ("standard-384", 8, 384, 1440),
        ),
    }
)
_N1_MEMORY_GB: Final = {"standard": 3.75, "highmem": 6.5, "highcpu": 0.9}
N1_TYPES: Final[MachineTypes] = MappingProxyType(
    {
        f"n1-{kind}-{vcpus}": MachineType(0, vcpus, vcpus * memory_gb)
        for kind, memory_gb in _N1_MEMORY_GB.items()
        for vcpus in (1, 2, 4, 8, 16, 32, 64, 96)
        if vcpus > 1 or kind == "standard"
    }
)
# The numbers of accelerators that can be attached to an N1 machine type, by kind.
ATTACHABLE: Final[Mapping[str, tuple[int, ...]]] = MappingProxyType(
    {
        "nvidia-tesla-t4": (1, 2, 4),
        "nvidia-tesla-v100": (1, 2, 4, 8),
        "nvidia-tesla-p100": (1, 2, 4),
        "nvidia-tesla-p4": (1, 2, 4),
    }
)
# The GPUs of each kind of accelerator. The catalogue has no machine type with a nvidia-gb200.
ACCELERATOR_MODELS: Final[Mapping[str, GpuModel]] = MappingProxyType(
    {
        "nvidia-tesla-p4": gpu_models.P4,
        "nvidia-tesla-p100": gpu_models.P100,
        "nvidia-tesla-v100": gpu_models.V100,
        "nvidia-tesla-t4": gpu_models.T4,
        "nvidia-tesla-a100": gpu_models.A100_40,
        "nvidia-a100-80gb": gpu_models.A100_80,
        "nvidia-l4": gpu_models.L4,
        "nvidia-h100-80gb": gpu_models.H100,
        "nvidia-h100-mega-80gb": gpu_models.H100_MEGA,
        "nvidia-h200-141gb": gpu_models.H200,
        "nvidia-b200": gpu_models.B200,
        "nvidia-gb200": gpu_models.GB200,
        "nvidia-rtx-pro-6000": gpu_models.RTX_PRO_6000,
    }
)
# Series without accelerators; N1 may have attached accelerators.
_CPU_FAMILY_NAMES: Final = (
    "c2 c2d c3 c3d c4 c4a c4d e2 h3 h4d m1 m2 m3 m4 n1 n2 n2d n4 t2a t2d x4 z3"
)
CPU_FAMILIES: Final = frozenset(_CPU_FAMILY_NAMES.split())
# The cheapest boot disk of machine types, by the beginning of the type's name. Other series accept
# only Hyperdisk.
_DISKS: Final = (
    ("hyperdisk-balanced", ("a3-ultragpu-",)),
    ("pd-standard", ("a2-", "custom-", "n1-")),
    (
        "pd-balanced",
        (
            *("a3-", "c2-", "c2d-", "c3-", "c3d-", "e2-", "f1-", "g1-", "g2-", "h3-", "m1-", "m2-"),
            *("m3-", "n2-", "n2d-", "t2a-", "t2d-", "z3-"),
        ),
    ),
)
DISK_DEFAULT: Final = "hyperdisk-balanced"

# The machine type of a pool that names none, and the accelerators of an N1 type without a number.
N1_DEFAULT: Final = "n1-standard-4"
N1_ACCELERATOR: Final = "nvidia-tesla-t4"
N1_ACCELERATORS: Final = 1
# The number of accelerators of an N1 type in stored sections without a number. Version 0.1 and
# earlier versions stored such sections.
FORMER_N1_ACCELERATORS: Final = 4

_INSTANCE_TYPE: Final = re.compile(
    r"(?P<machine>[a-z][a-z0-9]*(?:-[a-z0-9]+)+)"
    r"(?:\+(?P<accelerator>[a-z0-9-]+):(?P<count>\d{1,2}))?"
)
# The names of custom types. The series may be omitted for N1.
_CUSTOM_TYPE: Final = re.compile(
    r"(?:[a-z][a-z0-9]*-)?custom-(?:(?:micro|small|medium)-|(?P<vcpus>\d{1,3})-)"
    r"(?P<memory_mb>\d{3,8})(?:-ext)?"
)
# Types with shared vCPUs: a vCPU of e2-micro is a quarter of a whole vCPU.
_SHARED_TYPES: Final = frozenset({"e2-micro", "e2-small", "e2-medium", "f1-micro", "g1-small"})
_SHARED_VCPUS: Final = 2


def machine_series(machine_type: str) -> str:
    """Return the series of a machine type: "a2" for a2-highgpu-1g, "n1" for custom-8-32768."""
    series = machine_type.partition("-")[0]
    return "n1" if series == "custom" else series


def find_machine_type(name: str, described: MachineTypes = NONE_DESCRIBED) -> MachineType | None:
    """Return the hardware of a machine type, or None for an unknown type.

    Use the description if `described` has the type, else the catalogue: GPU_TYPES and N1_TYPES. The
    vCPUs and the memory of a custom type of CPU_FAMILIES are read from its name; a shared custom
    type has 2 vCPUs. The catalogue lacks other types of CPU_FAMILIES, such as n2-standard-8.
    """
    found = described.get(name) or GPU_TYPES.get(name) or N1_TYPES.get(name)
    if found is not None or machine_series(name) not in CPU_FAMILIES:
        return found
    custom = _CUSTOM_TYPE.fullmatch(name)
    if custom is None:
        return None
    vcpus = int(custom["vcpus"] or _SHARED_VCPUS)
    return MachineType(0, vcpus, int(custom["memory_mb"]) / 1024)


def custom_sibling(name: str) -> str:
    """Return a predefined type that is sold in the same zones as a custom type.

    Return "" if the name is not the name of a custom type.
    """
    return f"{machine_series(name)}-standard-2" if _CUSTOM_TYPE.fullmatch(name) else ""


def is_sold_by_parts(name: str) -> bool:
    """Return whether the price of a machine type is the sum of the prices of its vCPUs and memory.

    Return False for custom types and types with shared vCPUs, which have other prices, and True for
    every other name.
    """
    return name not in _SHARED_TYPES and _CUSTOM_TYPE.fullmatch(name) is None


def parse_instance_type(text: str) -> InstanceType | None:
    """Parse the text of an instance type in a configuration. Return None for an invalid text.

    A valid text is a machine type, or a machine type, "+", and accelerators as in
    nvidia-tesla-t4:2. The machine type and the accelerator need not exist.
    """
    found = _INSTANCE_TYPE.fullmatch(text)
    if found is None:
        return None
    if found["count"] is None:
        return InstanceType(found["machine"])
    return InstanceType(found["machine"], found["accelerator"], int(found["count"]))


def describe_instance_type(
    machine_type: str,
    accelerator: str | None,
    count: int | None,
    described: MachineTypes = NONE_DESCRIBED,
) -> InstanceType:
    """Return the instance type for a machine type and the accelerators in a configuration.

    If the accelerators are the machine type's own, or if the count is 0, the result names no
    accelerators. The result is not checked; see `attachment_problem`.

    Args:
        accelerator: the kind. None stands for the type's own kind, or nvidia-tesla-t4 for a type
            without own accelerators. "" attaches nothing, whatever `count` is.
        count: the number. None stands for the type's own number. For a type without own
            accelerators, None means FORMER_N1_ACCELERATORS on N1 or with an `accelerator`, and 0
            otherwise: a new configuration has a number for N1.
        described: machine types that take precedence over the catalogue.
    """
    is_n1 = machine_series(machine_type) == "n1"
    known = find_machine_type(machine_type, described)
    own = known if known and known.gpus else None
    if accelerator == "":
        return InstanceType(machine_type)
    if count is None:
        count = own.gpus if own else FORMER_N1_ACCELERATORS if is_n1 or accelerator else 0
    if accelerator is None:
        accelerator = own.accelerator if own else N1_ACCELERATOR
    is_own = own is not None and (accelerator, count) == (own.accelerator, own.gpus)
    if is_own or count == 0:
        return InstanceType(machine_type)
    return InstanceType(machine_type, accelerator, count)


def attachment_problem(instance: InstanceType, described: MachineTypes = NONE_DESCRIBED) -> str:
    """Return why the accelerators cannot be attached to the machine type, as text for users.

    Return "" if they can, or if nothing is attached. Only N1 types accept accelerators, in the
    numbers of ATTACHABLE. Whether the machine type exists is not checked.
    """
    if not instance.accelerator:
        return ""
    if instance.family != "n1":
        own = find_machine_type(instance.machine_type, described)
        has = "takes no accelerators"
        if own is not None and own.gpus:
            has = f"has {own.gpus} of {own.accelerator}"
        return f"{instance.machine_type} {has}; only n1 machine types take others"
    counts = ATTACHABLE.get(instance.accelerator)
    if counts is None:
        return f"n1 machine types take {', '.join(ATTACHABLE)}, not {instance.accelerator}"
    if instance.number not in counts:
        numbers = ", ".join(map(str, counts))
        return f"a machine takes {numbers} of {instance.accelerator}, not {instance.number}"
    return ""


def gpus_of(instance: InstanceType, described: MachineTypes = NONE_DESCRIBED) -> int | None:
    """Return the number of GPUs of an instance: attached GPUs, or else the machine type's own.

    Without attached GPUs, return 0 for every type of CPU_FAMILIES that `described` lacks, and None
    for an unknown type of another series.
    """
    if instance.number:
        return instance.number
    known = find_machine_type(instance.machine_type, described)
    if known is not None:
        return known.gpus
    return 0 if instance.family in CPU_FAMILIES else None


def accelerator_of(instance: InstanceType, described: MachineTypes = NONE_DESCRIBED) -> str:
    """Return the kind of an instance's GPUs: of attached GPUs, or else of the machine type's own.

    Return "" without GPUs, and for an unknown type without attached GPUs.
    """
    known = find_machine_type(instance.machine_type, described)
    return instance.accelerator or (known.accelerator if known else "")


def gpu_model_of(
    instance: InstanceType, described: MachineTypes = NONE_DESCRIBED
) -> GpuModel | None:
    """Return the model of an instance's GPUs.

    Return None without GPUs, and for an unknown kind.
    """
    return ACCELERATOR_MODELS.get(accelerator_of(instance, described))


def devices_of(text: str) -> tuple[AgentDevice, ...]:
    """Return the devices that the agent of an instance type reports, each once.

    A type of a series without GPUs has its processors. Return () for an unknown type.

    Args:
        text: the instance type as in configurations.
    """
    instance = parse_instance_type(text)
    if instance is None:
        return ()
    model = gpu_model_of(instance)
    if model is not None:
        return (model.device,)
    return (AgentDevice("cpu", ""),) if slots_of(text, None, False) == 0 else ()


def slots_of(
    text: str,
    configured: int | None,
    cpu_slots_allowed: bool,
    described: MachineTypes = NONE_DESCRIBED,
) -> int | None:
    """Return the number of slots of an instance: the configured number, or else that of the GPUs.

    A type of a series without GPUs has 0 slots. Return None for an unknown or invalid type without
    a configured number. The configured number is not compared with the GPUs.

    Args:
        text: the instance type as in configurations.
        configured: the user's number of slots; None if absent.
        cpu_slots_allowed: whether 0 slots become 1, also if 0 is configured.
        described: machine types that take precedence over the catalogue.
    """
    instance = parse_instance_type(text)
    slots = configured
    if slots is None and instance is not None:
        slots = gpus_of(instance, described)
    return 1 if slots == 0 and cpu_slots_allowed else slots


def can_migrate(machine_type: str) -> bool:
    """Return whether Compute Engine moves running machines of this type for maintenance.

    The answer holds for machines without GPUs, and is wrong for a Z3 with more than 18,000 GiB of
    local storage, which has the same name. Source: "About host events", as of 2026-05.
    """
    return machine_series(machine_type) != "h4d" and not machine_type.endswith("-metal")


def boot_disk_type(machine_type: str) -> str:
    """Return the cheapest kind of boot disk that a machine type accepts.

    Return DISK_DEFAULT for every type that _DISKS does not list, unknown types included.
    """
    return next((disk for disk, types in _DISKS if machine_type.startswith(types)), DISK_DEFAULT)
