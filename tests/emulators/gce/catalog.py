"""The machine types and accelerators of the simulated Compute Engine."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TypeFacts:
    """Processors, memory and GPUs of a machine type."""

    vcpus: int
    memory_mb: int
    gpus: int = 0
    accelerator: str = ""
    architecture: str = "X86_64"


TYPES: Mapping[str, TypeFacts] = {
    **{
        f"a2-highgpu-{gpus}g": TypeFacts(12 * gpus, 85 * 1024 * gpus, gpus, "nvidia-tesla-a100")
        for gpus in (1, 2, 4, 8)
    },
    "a4x-highgpu-4g": TypeFacts(140, 884 * 1024, 4, "nvidia-gb200", "ARM64"),
    "g2-standard-4": TypeFacts(4, 16 * 1024, 1, "nvidia-l4"),
    "g2-standard-48": TypeFacts(48, 192 * 1024, 4, "nvidia-l4"),
    **{f"n1-standard-{n}": TypeFacts(n, 3840 * n) for n in (1, 2, 4, 8, 16, 32, 64, 96)},
    "e2-standard-4": TypeFacts(4, 16 * 1024),
}
# Accelerators, with the maximum per instance.
ACCELERATORS: Mapping[str, int] = {
    "nvidia-tesla-a100": 16,
    "nvidia-gb200": 4,
    "nvidia-l4": 8,
    "nvidia-tesla-t4": 4,
    "nvidia-tesla-v100": 8,
    "nvidia-tesla-p100": 4,
    "nvidia-tesla-p4": 4,
}
_CUSTOM = re.compile(r"(?:n1-)?custom-(\d+)-(\d+)")


def find_type(name: str) -> TypeFacts | None:
    """Return the facts of a machine type, custom types included, or None for an unknown name."""
    custom = _CUSTOM.fullmatch(name)
    return TypeFacts(int(custom[1]), int(custom[2])) if custom else TYPES.get(name)


def describe_types(zones: Iterable[str], url: str, away: Iterable[Any]) -> list[dict[str, Any]]:
    """Return the machine types of zones, without the (type, zone) pairs in `away`."""
    missing = frozenset(away)
    return [
        {
            "kind": "compute#machineType",
            "name": name,
            "guestCpus": kind.vcpus,
            "memoryMb": kind.memory_mb,
            "architecture": kind.architecture,
            "isSharedCpu": False,
            "zone": f"{url}/zones/{zone}",
            **({"accelerators": [_own_accelerators(kind)]} if kind.gpus else {}),
        }
        for zone in zones
        for name, kind in TYPES.items()
        if (name, zone) not in missing
    ]


def describe_accelerators(zones: Iterable[str], url: str) -> list[dict[str, Any]]:
    """Return the accelerators of zones."""
    return [
        {
            "kind": "compute#acceleratorType",
            "name": name,
            "maximumCardsPerInstance": number,
            "zone": f"{url}/zones/{zone}",
        }
        for zone in zones
        for name, number in ACCELERATORS.items()
    ]


def _own_accelerators(facts: TypeFacts) -> dict[str, Any]:
    return {"guestAcceleratorType": facts.accelerator, "guestAcceleratorCount": facts.gpus}
