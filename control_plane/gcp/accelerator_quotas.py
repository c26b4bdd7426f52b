"""The regional quotas of Compute Engine for accelerators, by market.

The names are those of the API's `Quota.metric` (compute v1) and of the quota page. A new project
has most of these quotas at 0. GPUS_ALL_REGIONS limits all regions together and is 0 as well.

For types since A3, Compute Engine has a quota per family of GPUs, without a `metric` for on-demand
instances. In a project that never requested a PREEMPTIBLE quota, spot instances count against the
on-demand quota.
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
    """Return the name of the quota that counts the GPUs of an instance type in a market.

    A kind of GPU in _METRICS has a quota such as NVIDIA_T4_GPUS, and on the spot market
    PREEMPTIBLE_NVIDIA_T4_GPUS. Other kinds have _FAMILY_QUOTA, and on the spot market the quota in
    _SPOT_ONLY_METRICS or else _FAMILY_QUOTA.

    Return "" for a type without GPUs and for an unknown or invalid type. `described` are machine
    types that take precedence over the catalogue.
    """
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
    """Return the advice for users which quotas to raise for an instance type, with a link.

    The advice names the quota of GPUs in the region and the one for all regions. For a type without
    known GPUs, it names only the region's quota of vCPUs. The text begins with "it counts against".
    """
    metric = quota_metric(instance_type, market, described)
    names = f"{metric} in {region} and {ALL_REGIONS}"
    if not metric:
        names = f"{cpu_metric(instance_type, market)} in {region}"
    return f"it counts against {names}; raise it at {quota_url(project)}"


def quota_url(project: str) -> str:
    """Return the URL of the console's page for a project's quotas."""
    return f"https://console.cloud.google.com/iam-admin/quotas?project={project}"
