"""Checks of the machines that AWS's Deep Learning Base AMI runs on, the default image of pools.

Sources: DLAMI developer guide, "Important NVIDIA driver changes to DLAMIs" (its open driver knows
GPUs from Turing on) and the release notes of "Deep Learning Base OSS Nvidia Driver GPU AMI
(Ubuntu 24.04)"; EC2 instance types guide, "Instance type naming conventions".
"""

import re

ARCHITECTURE = "x86_64"
# GPUs of the generations Kepler, Maxwell and Volta.
GPUS_WITHOUT_DRIVER = frozenset({"K80", "M60", "V100"})
_FAMILIES_WITHOUT_DRIVER = frozenset({"p2", "p3", "p3dn", "g3", "g3s"})
# The letter g after the generation denotes AWS's own processor, which has ARM's architecture.
_ARM_FAMILY = re.compile(r"a1|[a-z]+\d+[a-z]*g[a-z]*|[a-z]+\d+[a-z]*-gb\d+")


def architecture_by_name(instance_type: str) -> str:
    """Return `arm64` or `x86_64`, derived from the type's name; unknown names are `x86_64`."""
    is_arm = _ARM_FAMILY.fullmatch(_family(instance_type))
    return "arm64" if is_arm else "x86_64"


def name_incompatibility(instance_type: str) -> str:
    """Return why the default image cannot run on an instance type, judged by the type's name.

    Return "" if the image can run. ARM processors, and GPUs too old for the image's driver, are
    incompatible.
    """
    if architecture_by_name(instance_type) != ARCHITECTURE:
        return f"its processor is ARM's, and AWS's image is for {ARCHITECTURE}"
    if _family(instance_type) in _FAMILIES_WITHOUT_DRIVER:
        return "its GPU is too old for the driver of AWS's image"
    return ""


def _family(instance_type: str) -> str:
    return instance_type.partition(".")[0]
