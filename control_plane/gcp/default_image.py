"""The instance types that Google's accelerator image runs on, the default image of pools. Pure.

Sources: Canonical, "Ubuntu Accelerator Images on Google Cloud" (NVIDIA's open kernel modules, for
x86-64), as of 2025-10; Compute Engine, "Arm VMs on Compute Engine" and "A4X series", as of
2025-10.
"""

from typing import Final

from control_plane.fleet.gpu_models import ImageProblem, find_driver_problem
from control_plane.gcp.machine_types import (
    NONE_DESCRIBED,
    MachineTypes,
    gpu_model_of,
    parse_instance_type,
)

_IMAGE: Final = "Google's image"
_FIELD: Final = "provider.boot_disk_source_image"
_ARM_SERIES: Final = frozenset({"a4x", "c4a", "n4a", "t2a"})


def find_image_problem(
    instance_type: str, described: MachineTypes = NONE_DESCRIBED
) -> ImageProblem | None:
    """Return why the default image cannot run on an instance type.

    Return None if the image can run, and for an unknown or invalid type. ARM processors, and GPUs
    too old for the image's driver, are problems. `described` has machine types that take precedence
    over the catalogue.
    """
    instance = parse_instance_type(instance_type)
    if instance is None:
        return None
    if instance.family in _ARM_SERIES:
        text = f"its processor is ARM's, and {_IMAGE} is for x86-64"
        return ImageProblem(text, f"use another type, or name an image for ARM in {_FIELD}")
    model = gpu_model_of(instance, described)
    return find_driver_problem(model, _IMAGE, _FIELD) if model else None
