"""The GPUs and the prices of EC2's instance types.

The configuration counts slots with this catalogue before anything is launched, when no cloud can be
asked. `detcloud deploy check aws` compares the slots with EC2's description
(DescribeInstanceTypes). A launch compares the slots of types that the catalogue lacks. The table is
of 2025-06; for types announced later, only the GPUs are listed.

The provisioner estimates costs with the prices: dollars for an hour of Linux, on demand, in
us-east-1, as of 2025-06. In other regions the prices are estimates. A `price_per_hour` in the
configuration takes precedence. A price of 0 means that the price is unknown.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from control_plane.fleet import gpu_models
from control_plane.fleet.gpu_models import GpuModel
from control_plane.scheduling.agent_needs import AgentDevice


class InstanceType(NamedTuple):
    """The GPUs and the price of an instance type."""

    gpus: int
    price_per_hour: float = 0.0
    """The on-demand price in dollars; 0 if unknown."""


class NetworkCards(NamedTuple):
    """The network cards of an instance type that supports Elastic Fabric Adapters (EFA)."""

    adapters: int
    """The largest number of adapters: one on each card, or one on each card but the first."""
    cards: int = 1


def _sizes(
    family: str, *sizes: tuple[str, int] | tuple[str, int, float]
) -> dict[str, InstanceType]:
    """Return the instance types of a family by name; each size is a size name, GPUs and a price."""
    return {f"{family}.{size}": InstanceType(*rest) for size, *rest in sizes}


GPU_TYPES: Final[Mapping[str, InstanceType]] = MappingProxyType(
    {
        **_sizes(
            "g4dn",
            ("xlarge", 1, 0.526),
            ("2xlarge", 1, 0.752),
            ("4xlarge", 1, 1.204),
            ("8xlarge", 1, 2.176),
            ("16xlarge", 1, 4.352),
            ("12xlarge", 4, 3.912),
            ("metal", 8, 7.824),
        ),
        **_sizes(
            "g5",
            ("xlarge", 1, 1.006),
            ("2xlarge", 1, 1.212),
            ("4xlarge", 1, 1.624),
            ("8xlarge", 1, 2.448),
            ("16xlarge", 1, 4.096),
            ("12xlarge", 4, 5.672),
            ("24xlarge", 4, 8.144),
            ("48xlarge", 8, 16.288),
        ),
        **_sizes(
            "g5g",
            ("xlarge", 1, 0.42),
            ("2xlarge", 1, 0.556),
            ("4xlarge", 1, 0.828),
            ("8xlarge", 1, 1.372),
            ("16xlarge", 2, 2.744),
            ("metal", 2, 2.744),
        ),
        **_sizes(
            "g6",
            ("xlarge", 1, 0.8048),
            ("2xlarge", 1, 0.9776),
            ("4xlarge", 1, 1.3232),
            ("8xlarge", 1, 2.0144),
            ("16xlarge", 1, 3.3968),
            ("12xlarge", 4, 4.6016),
            ("24xlarge", 4, 6.6752),
            ("48xlarge", 8, 13.3504),
        ),
        **_sizes("gr6", ("4xlarge", 1, 1.5392), ("8xlarge", 1, 2.4464)),
        **_sizes(
            "g6e",
            ("xlarge", 1, 1.861),
            ("2xlarge", 1, 2.24208),
            ("4xlarge", 1, 3.00424),
            ("8xlarge", 1, 4.52856),
            ("16xlarge", 1, 7.57719),
            ("12xlarge", 4, 10.49264),
            ("24xlarge", 4, 15.06559),
            ("48xlarge", 8, 30.13118),
        ),
        **_sizes(
            "g7",
            ("2xlarge", 1),
            ("4xlarge", 1),
            ("8xlarge", 1),
            ("12xlarge", 2),
            ("24xlarge", 4),
            ("48xlarge", 8),
        ),
        **_sizes(
            "g7e",
            ("2xlarge", 1),
            ("4xlarge", 1),
            ("8xlarge", 1),
            ("12xlarge", 2),
            ("24xlarge", 4),
            ("48xlarge", 8),
        ),
        **_sizes("p2", ("xlarge", 1, 0.9), ("8xlarge", 8, 7.2), ("16xlarge", 16, 14.4)),
        **_sizes("p3", ("2xlarge", 1, 3.06), ("8xlarge", 4, 12.24), ("16xlarge", 8, 24.48)),
        **_sizes("p3dn", ("24xlarge", 8, 31.212)),
        **_sizes("p4d", ("24xlarge", 8, 21.95764)),
        **_sizes("p4de", ("24xlarge", 8, 27.44705)),
        **_sizes("p5", ("4xlarge", 1, 6.88), ("48xlarge", 8, 55.04)),
        **_sizes("p5e", ("48xlarge", 8)),
        **_sizes("p5en", ("48xlarge", 8, 63.296)),
        **_sizes("p6-b200", ("48xlarge", 8, 113.9328)),
        **_sizes("p6-b300", ("48xlarge", 8)),
    }
)
# The instance type of a pool that names neither a type nor a number of slots: the cheapest type
# with one GPU that the default image boots.
TYPE_DEFAULT: Final = "g4dn.xlarge"
# The GPUs of each family. The families g3, g3s and p6e-gb200 are not in GPU_TYPES.
# Source: EC2 instance types guide, "Accelerated computing", as of 2025-06; AWS's announcements of
# G7 and G7e, as of 2026-06.
GPU_FAMILIES: Final[Mapping[str, GpuModel]] = MappingProxyType(
    {
        "g3": gpu_models.M60,
        "g3s": gpu_models.M60,
        "g4dn": gpu_models.T4,
        "g5": gpu_models.A10G,
        "g5g": gpu_models.T4G,
        "g6": gpu_models.L4,
        "gr6": gpu_models.L4,
        "g6e": gpu_models.L40S,
        "g7": gpu_models.RTX_PRO_4500,
        "g7e": gpu_models.RTX_PRO_6000,
        "p2": gpu_models.K80,
        "p3": gpu_models.V100,
        "p3dn": gpu_models.V100,
        "p4d": gpu_models.A100_40,
        "p4de": gpu_models.A100_80,
        "p5": gpu_models.H100,
        "p5e": gpu_models.H200,
        "p5en": gpu_models.H200,
        "p6-b200": gpu_models.B200,
        "p6-b300": gpu_models.B300,
        "p6e-gb200": gpu_models.GB200,
    }
)
# The sizes that support a single Elastic Fabric Adapter (EFA), by family.
_ONE_ADAPTER_SIZES: Final = {
    "g4dn": "8xlarge 12xlarge 16xlarge metal",
    "g5": "8xlarge 12xlarge 16xlarge 24xlarge 48xlarge",
    "g6": "8xlarge 12xlarge 16xlarge 24xlarge 48xlarge",
    "gr6": "8xlarge",
    "g6e": "8xlarge 12xlarge 16xlarge",
    "g7": "8xlarge 12xlarge 24xlarge",
    "g7e": "8xlarge 12xlarge",
    "p3dn": "24xlarge",
    "p5": "4xlarge",
}
NETWORK_CARDS: Final[Mapping[str, NetworkCards]] = MappingProxyType(
    {
        **{
            f"{family}.{size}": NetworkCards(1)
            for family, sizes in _ONE_ADAPTER_SIZES.items()
            for size in sizes.split()
        },
        "g6e.24xlarge": NetworkCards(2, 2),
        "g6e.48xlarge": NetworkCards(4, 4),
        "g7.48xlarge": NetworkCards(2, 2),
        "g7e.24xlarge": NetworkCards(2, 2),
        "g7e.48xlarge": NetworkCards(4, 4),
        "p4d.24xlarge": NetworkCards(4, 4),
        "p4de.24xlarge": NetworkCards(4, 4),
        "p5.48xlarge": NetworkCards(32, 32),
        "p5e.48xlarge": NetworkCards(32, 32),
        "p5en.48xlarge": NetworkCards(16, 16),
        "p6-b200.48xlarge": NetworkCards(8, 8),
        "p6-b300.48xlarge": NetworkCards(16, 17),
    }
)
# The families in which no size has an accelerator.
_CPU_FAMILY_NAMES: Final = (
    "t2 t3 t3a t4g m4 m5 m5a m5ad m5d m5dn m5n m5zn m6a m6g m6gd m6i m6id m6idn m6in m7a m7g m7gd "
    "m7i m7i-flex m8a m8g m8gd m8i m8i-flex c4 c5 c5a c5ad c5d c5n c6a c6g c6gd c6gn c6i c6id c6in "
    "c7a c7g c7gd c7gn c7i c7i-flex c8a c8g c8gd c8i c8i-flex r4 r5 r5a r5ad r5b r5d r5dn r5n r6a "
    "r6g r6gd r6i r6id r6idn r6in r7a r7g r7gd r7i r7iz r8a r8g r8gd r8i r8i-flex x2gd x2idn "
    "x2iedn x2iezn z1d"
)
CPU_FAMILIES: Final = frozenset(_CPU_FAMILY_NAMES.split())


def family_of(instance_type: str) -> str:
    """Return the family of an instance type: "g5" for g5.xlarge."""
    return instance_type.partition(".")[0]


def gpu_model_of(instance_type: str) -> GpuModel | None:
    """Return the model of an instance type's GPUs.

    Return None without GPUs, and for an unknown family. The size need not exist.
    """
    return GPU_FAMILIES.get(family_of(instance_type))


def devices_of(instance_type: str) -> tuple[AgentDevice, ...]:
    """Return the devices that the agent of an instance type reports, each once.

    A type of a family without GPUs has its processors. Return () for an unknown family.
    """
    family = family_of(instance_type)
    if family in CPU_FAMILIES:
        return (AgentDevice("cpu", ""),)
    model = GPU_FAMILIES.get(family)
    if family == "p3dn":
        return (AgentDevice("cuda", "Tesla V100-SXM2-32GB", 32 * 1024),)
    return () if model is None else (model.device,)


def gpus_of(instance_type: str) -> int | None:
    """Return the number of GPUs of an instance type.

    Return 0 for a type of a family without GPUs, and None for an unknown type.
    """
    known = GPU_TYPES.get(instance_type)
    if known is not None:
        return known.gpus
    return 0 if family_of(instance_type) in CPU_FAMILIES else None


def slots_of(instance_type: str, configured: int | None, cpu_slots_allowed: bool) -> int | None:
    """Return the number of slots of an instance: the number of GPUs.

    A type of a family without GPUs has 0 slots. Return None for an unknown type without a
    configured number.

    Args:
        configured: the user's number of slots, which takes precedence; None if absent.
        cpu_slots_allowed: whether 0 slots become 1, also if 0 is configured.
    """
    slots = configured if configured is not None else gpus_of(instance_type)
    return 1 if slots == 0 and cpu_slots_allowed else slots


def on_demand_price(instance_type: str) -> float:
    """Return the on-demand price of an instance type in dollars per hour; 0 if unknown.

    The price is for us-east-1, also for other regions.
    """
    known = GPU_TYPES.get(instance_type)
    return 0.0 if known is None else known.price_per_hour
