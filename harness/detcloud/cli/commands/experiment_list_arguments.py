"""Types of arguments about the list of experiments."""

from __future__ import annotations

from argparse import ArgumentTypeError

from detcloud.client.experiment_list import SORT_FIELDS


def parse_sort(text: str) -> str:
    """Return a sorted field, or a column such as `metric:loss`.

    Raises:
        ArgumentTypeError: the text is neither a field nor a column.
    """
    if text in SORT_FIELDS or text.startswith(("metric:", "hparam:")):
        return text
    known = ", ".join(SORT_FIELDS)
    raise ArgumentTypeError(f"{text!r} is not a field; use {known}, metric:NAME or hparam:PATH")
