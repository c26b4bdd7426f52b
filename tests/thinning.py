"""Parameters of dear tests, of which the gate takes a part and the night all."""

from collections.abc import Iterable
from typing import Any

import pytest


def every(number: int, values: Iterable[Any]) -> list[Any]:
    """Return the values as parameters, marked for the night except each `number`-th value.

    The first value is always tested. A tuple stands for the values of several parameters.
    """
    return [
        pytest.param(
            *(value if isinstance(value, tuple) else (value,)),
            marks=pytest.mark.nightly if position % number else (),
        )
        for position, value in enumerate(values)
    ]
