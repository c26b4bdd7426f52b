"""The choice of an instance type for a pool without a configured type. Pure."""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

# The number of larger types that a notice lists.
LARGER_MAX: Final = 3


class PricedType(NamedTuple):
    """An instance type with GPUs and a known price."""

    name: str
    gpus: int
    gpu: str
    """The model of the GPUs, for example `T4`."""
    price_per_hour: float
    """The on-demand list price in dollars, above 0."""


def smallest_types(types: Iterable[PricedType]) -> list[PricedType]:
    """Return the cheapest type for each number of GPUs, the smallest number first."""
    cheapest: dict[int, PricedType] = {}
    for item in types:
        known = cheapest.get(item.gpus)
        if known is None or (item.price_per_hour, item.name) < (known.price_per_hour, known.name):
            cheapest[item.gpus] = item
    return [cheapest[gpus] for gpus in sorted(cheapest)]


def find_smallest(smallest: Sequence[PricedType], gpus: int) -> PricedType | None:
    """Return the type with this number of GPUs.

    Return None without a type of this size. `smallest` is a result of `smallest_types`.
    """
    return next((item for item in smallest if item.gpus == gpus), None)


def size_texts(smallest: Sequence[PricedType]) -> str:
    """Return the numbers of GPUs of the types as text for users: "1, 4 or 8"."""
    *first, last = [str(item.gpus) for item in smallest]
    return f"{', '.join(first)} or {last}" if first else last


def choice_notice(
    setting: str, chosen: PricedType, smallest: Sequence[PricedType], region: str
) -> str:
    """Return the notice that a pool without a type gets `chosen`.

    The notice lists up to LARGER_MAX larger types.

    Args:
        setting: the path of the setting that names a type.
        chosen: the type of the pool.
        smallest: a result of `smallest_types`; types with more GPUs than `chosen` are larger.
        region: the region of the prices.
    """
    larger = [item for item in smallest if item.gpus > chosen.gpus][:LARGER_MAX]
    more = f"; larger types: {', '.join(map(_type_text, larger))}" if larger else ""
    return (
        f"{setting} is not set: instances are {_type_text(chosen)}{more} "
        f"(list prices on demand in {region})"
    )


def _type_text(item: PricedType) -> str:
    """Return a type with GPUs and price: "g4dn.xlarge with 1 T4 at $0.526 an hour"."""
    return f"{item.name} with {item.gpus} {item.gpu} at ${round(item.price_per_hour, 3):g} an hour"
