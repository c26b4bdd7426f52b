"""The instance type of a pool on AWS without a configured type. Pure."""

from typing import Final

from control_plane.aws.default_image import find_image_problem
from control_plane.aws.instance_types import GPU_TYPES, gpu_model_of
from control_plane.fleet.type_choice import (
    PricedType,
    choice_notice,
    find_smallest,
    size_texts,
    smallest_types,
)

# The region of the catalogue's prices.
_PRICE_REGION: Final = "us-east-1"
_SETTING: Final = "provider.instance_type"


def find_default_type(gpus: int) -> str:
    """Return the cheapest type with this number of GPUs that the default image boots.

    Return "" without a type of this size with a known price.
    """
    chosen = find_smallest(_smallest(), gpus)
    return chosen.name if chosen else ""


def default_sizes() -> str:
    """Return the numbers of GPUs that `find_default_type` has types for, as text for users."""
    return size_texts(_smallest())


def default_type_notice(instance_type: str) -> str:
    """Return the notice that a pool without a type gets this type of `find_default_type`."""
    smallest = _smallest()
    chosen = next(item for item in smallest if item.name == instance_type)
    return choice_notice(_SETTING, chosen, smallest, _PRICE_REGION)


def _smallest() -> list[PricedType]:
    """Return the cheapest type of each size that the default image boots."""
    return smallest_types(
        PricedType(name, known.gpus, model.name, known.price_per_hour)
        for name, known in GPU_TYPES.items()
        if known.price_per_hour and (model := gpu_model_of(name)) and not find_image_problem(name)
    )
