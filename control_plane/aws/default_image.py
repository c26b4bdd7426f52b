"""The instance types that AWS's Deep Learning Base AMI runs on, the default image of pools. Pure.

Sources: DLAMI developer guide, "Important NVIDIA driver changes to DLAMIs" (the open driver runs
GPUs from Turing on) and the release notes of "Deep Learning Base OSS Nvidia Driver GPU AMI
(Ubuntu 24.04)", as of 2025-10; EC2 instance types guide, "Instance type naming conventions".
"""

import re
from typing import Final

from control_plane.aws.instance_types import family_of, gpu_model_of
from control_plane.fleet.gpu_models import GpuModel, ImageProblem, find_driver_problem

ARCHITECTURE: Final = "x86_64"
_IMAGE: Final = "AWS's image"
_FIELD: Final = "provider.image_id"
# The letter g after the generation denotes AWS's own processor, which has ARM's architecture.
_ARM_FAMILY: Final = re.compile(r"a1|[a-z]+\d+[a-z]*g[a-z]*|[a-z]+\d+[a-z]*-gb\d+")


def architecture_by_name(instance_type: str) -> str:
    """Return `arm64` or `x86_64`, derived from the type's name; unknown names are `x86_64`."""
    is_arm = _ARM_FAMILY.fullmatch(family_of(instance_type))
    return "arm64" if is_arm else "x86_64"


def find_image_problem(instance_type: str) -> ImageProblem | None:
    """Return why the default image cannot run on an instance type, judged by the type's name.

    Return None if the image can run, and for unknown names. ARM processors, and GPUs too old for
    the image's driver, are problems.
    """
    if architecture_by_name(instance_type) != ARCHITECTURE:
        text = f"its processor is ARM's, and {_IMAGE} is for {ARCHITECTURE}"
        return ImageProblem(text, f"use another type, or name an image for ARM in {_FIELD}")
    model = gpu_model_of(instance_type)
    return find_gpu_problem(model) if model else None


def find_gpu_problem(model: GpuModel) -> ImageProblem | None:
    """Return why the driver of the default image does not run a GPU.

    Return None if the driver runs the GPU.
    """
    return find_driver_problem(model, _IMAGE, _FIELD)
