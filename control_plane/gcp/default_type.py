"""The machine type and GPUs of a pool on Google Cloud without a configured type. Pure.

Decision 112 has the reasons for N1 with T4.
"""

from collections.abc import Iterator
from typing import Final

from control_plane.fleet.records import Market
from control_plane.fleet.type_choice import (
    PricedType,
    choice_notice,
    find_smallest,
    size_texts,
    smallest_types,
)
from control_plane.gcp.default_image import find_image_problem
from control_plane.gcp.machine_prices import list_price
from control_plane.gcp.machine_types import (
    ATTACHABLE,
    GPU_TYPES,
    N1_ACCELERATOR,
    N1_TYPES,
    InstanceType,
    gpu_model_of,
    gpus_of,
    parse_instance_type,
)

# A data loader of each GPU needs vCPUs; N1 with T4 has 4 for each in Google's examples.
_VCPUS_PER_GPU: Final = 4
# The region of the table of prices.
_PRICE_REGION: Final = "us-central1"
_SETTING: Final = "provider.instance_type.machine_type"


def n1_type_for(gpus: int) -> str:
    """Return the smallest standard N1 type with _VCPUS_PER_GPU vCPUs for each of `gpus` GPUs.

    Return the largest type if no type is large enough, and the type for one GPU without GPUs.
    """
    sizes = {kind.vcpus: name for name, kind in N1_TYPES.items() if "-standard-" in name}
    wanted = _VCPUS_PER_GPU * max(gpus, 1)
    return sizes[min((vcpus for vcpus in sizes if vcpus >= wanted), default=max(sizes))]


def find_default_type(gpus: int) -> InstanceType | None:
    """Return the cheapest type with this number of GPUs that the default image boots.

    Return None without a type of this size with a known price.
    """
    chosen = find_smallest(_smallest(), gpus)
    return parse_instance_type(chosen.name) if chosen else None


def default_sizes() -> str:
    """Return the numbers of GPUs that `find_default_type` has types for, as text for users."""
    return size_texts(_smallest())


def default_type_notice(instance: InstanceType) -> str:
    """Return the notice that a pool without a machine type gets this type.

    Return "" for a type without GPUs or without a known price.
    """
    chosen = _to_priced_type(instance)
    return choice_notice(_SETTING, chosen, _smallest(), _PRICE_REGION) if chosen else ""


def _smallest() -> list[PricedType]:
    """Return the cheapest type of each size that the default image boots."""
    return smallest_types(_candidates())


def _candidates() -> Iterator[PricedType]:
    """Yield the types with built-in GPUs, and N1 types with T4, that have prices and can boot."""
    instances = [InstanceType(name) for name in GPU_TYPES]
    instances += [
        InstanceType(n1_type_for(number), N1_ACCELERATOR, number)
        for number in ATTACHABLE[N1_ACCELERATOR]
    ]
    for instance in instances:
        priced = _to_priced_type(instance)
        if priced and not find_image_problem(priced.name):
            yield priced


def _to_priced_type(instance: InstanceType) -> PricedType | None:
    """Return a type with GPUs and price. Return None without GPUs or without a known price."""
    model, price = gpu_model_of(instance), list_price(str(instance), Market.ON_DEMAND)
    if model is None or not price:
        return None
    return PricedType(str(instance), gpus_of(instance) or 0, model.name, price)
