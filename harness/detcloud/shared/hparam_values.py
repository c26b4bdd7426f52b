"""Single values of hyperparameters' ranges, where no search draws them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def choose_hparams(
    space: Mapping[str, Any], choose_number: Callable[[Mapping[str, Any]], Any]
) -> dict[str, Any]:
    """Choose constants as they are, the first of each category, and of each range of numbers what
    `choose_number` makes of it. Maps within the space are spaces too.
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
