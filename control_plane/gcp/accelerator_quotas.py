"""The quotas of a region that Compute Engine counts accelerators against, by market.

Names are those of the API's `Quota.metric` (compute v1), and of the quota page. A new project
begins with 0 of most of them, and of GPUS_ALL_REGIONS, which bounds all regions together.

The types since A3 are counted by a quota of their own for each family of GPUs, which has no such
name for instances on demand. Spot instances count against the quota of those on demand where a
project has no quota of PREEMPTIBLE and never asked for any.
"""

from typing import Final

from control_plane.fleet.records import Market
from control_plane.gcp.cpu_quotas import cpu_metric
from control_plane.gcp.machine_types import (
    NONE_DESCRIBED,
    MachineTypes,
    accelerator_of,
    parse_instance_type,
)

ALL_REGIONS: Final = "GPUS_ALL_REGIONS"
PREEMPTIBLE: Final = "PREEMPTIBLE_"
_FAMILY_QUOTA: Final = "GPUS-PER-GPU-FAMILY-per-project-region"

_METRICS: Final = {
    "nvidia-tesla-t4": "NVIDIA_T4_GPUS",
    "nvidia-tesla-v100": "NVIDIA_V100_GPUS",
    "nvidia-tesla-p100": "NVIDIA_P100_GPUS",
    "nvidia-tesla-p4": "NVIDIA_P4_GPUS",
    "nvidia-tesla-a100": "NVIDIA_A100_GPUS",
    "nvidia-a100-80gb": "NVIDIA_A100_80GB_GPUS",
    "nvidia-l4": "NVIDIA_L4_GPUS",
}
_SPOT_ONLY_METRICS: Final = {
    "nvidia-h100-80gb": "PREEMPTIBLE_NVIDIA_H100_GPUS",
    "nvidia-h100-mega-80gb": "PREEMPTIBLE_NVIDIA_H100_MEGA_GPUS",
    "nvidia-h200-141gb": "PREEMPTIBLE_NVIDIA_H200_GPUS",
    "nvidia-b200": "PREEMPTIBLE_NVIDIA_B200_GPUS",
}


def quota_metric(
    instance_type: str, market: Market, described: MachineTypes = NONE_DESCRIBED
) -> str:
    """The quota that counts the GPUs of an instance type in a market; "" where it has none."""
    instance = parse_instance_type(instance_type)
    accelerator = accelerator_of(instance, described) if instance else ""
    if not accelerator:
        return ""
    metric = _METRICS.get(accelerator)
    if metric is None:
        spot = _SPOT_ONLY_METRICS.get(accelerator, _FAMILY_QUOTA)
        return spot if market is Market.SPOT else _FAMILY_QUOTA
    return f"{PREEMPTIBLE}{metric}" if market is Market.SPOT else metric


def quota_advice(
    instance_type: str,
    market: Market,
    project: str,
    region: str,
    described: MachineTypes = NONE_DESCRIBED,
) -> str:
    """Which quota to raise for an instance type, and where."""
    metric = quota_metric(instance_type, market, described)
    names = f"{metric} in {region} and {ALL_REGIONS}"
    if not metric:
        names = f"{cpu_metric(instance_type, market)} in {region}"
    return f"it counts against {names}; raise it at {quota_url(project)}"


def quota_url(project: str) -> str:
    """The page of the console on which more of a quota is asked for."""
    return f"https://console.cloud.google.com/iam-admin/quotas?project={project}"
