"""The choice of single values from hyperparameter ranges without a search."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def choose_hparams(
    space: Mapping[str, Any], choose_number: Callable[[Mapping[str, Any]], Any]
) -> dict[str, Any]:
    """Return a value for each hyperparameter of a search space.

    The order of the space is kept. A value that is no mapping stays unchanged. A mapping of type
    const gives its `val`, and of type categorical the first of its `vals`. A range of type int,
    double or log gives the result of `choose_number` for the range. Any other mapping is a nested
    space and gives a nested dictionary, also with an unknown type. Raise KeyError without `val` or
    `vals`, and IndexError for empty `vals`.
    """
    return {name: _choose_value(value, choose_number) for name, value in space.items()}


def _choose_value(value: Any, choose_number: Callable[[Mapping[str, Any]], Any]) -> Any:
    if not isinstance(value, Mapping):
        return value
    match value.get("type"):
        case "const":
            return value["val"]
        case "categorical":
            return value["vals"][0]
        case "int" | "double" | "log":
            return choose_number(value)
    return choose_hparams(value, choose_number)
