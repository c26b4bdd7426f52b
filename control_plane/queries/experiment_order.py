"""The orders of the list of experiments: names, needed facts, and sorting."""

from collections.abc import Sequence
from typing import Literal, get_args

from control_plane.errors import invalid
from control_plane.queries.experiment_columns import Column, parse_column
from control_plane.queries.listed_facts import Facts, ListEntry, Need

SortField = Literal["id", "submitted", "name", "state", "user", "progress", "metric", "cost"]
Sort = SortField | Column
Order = Literal["asc", "desc"]

BY_ID = ("id", "submitted")
"""The fields of the order of ids. Ids increase with the time of submission."""
# The sort orders by a figure, and the field of `Facts` with the figure.
_FIGURES = {"metric": "metric", "progress": "progress", "cost": "cost_micros"}
_COLUMN_NEEDS: dict[str, Need] = {"metric": "metrics", "hparam": "hparams"}


def parse_sort(text: str) -> Sort:
    """Parse the name of a sorted field, or a column like `metric:loss`.

    Raises:
        RequestError: invalid, for another text.
    """
    for name in get_args(SortField):
        if text == name:
            field_name: SortField = name
            return field_name
    if ":" in text:
        return parse_column(text, "sort")
    known = ", ".join(get_args(SortField))
    raise invalid("sort", f"{text!a:.80} is not an order; expected {known}, or metric:NAME")


def sort_needs(sort: Sort) -> frozenset[Need]:
    """Return the kinds of facts that a sort order reads."""
    if isinstance(sort, Column):
        return frozenset({_COLUMN_NEEDS[sort.kind]})
    return frozenset({"figures"}) if sort in _FIGURES else frozenset()


def sort_entries(
    pairs: Sequence[tuple[ListEntry, Facts]], sort: Sort, order: Order
) -> list[ListEntry]:
    """Sort experiments with facts. The arguments have the newest experiment first.

    Experiments with equal values stay newest first. Experiments without a value come last, newest
    first. Texts are compared without case. In a column of hyperparameters, numbers come before
    texts in ascending order, and ranges and choices count as no value.
    """
    valued = [(_sort_value(entry, facts, sort), entry) for entry, facts in pairs]
    known = [(value, entry) for value, entry in valued if value is not None]
    # A stable sort keeps the newest of equals first in both orders.
    known.sort(key=lambda pair: pair[0], reverse=order == "desc")
    unknown = [entry for value, entry in valued if value is None]
    return [*(entry for _, entry in known), *unknown]


def _sort_value(entry: ListEntry, facts: Facts, sort: Sort) -> tuple[bool, float | str] | None:
    """Return the value by which an experiment is sorted: whether the value is a text, and the
    value. Return None without a value.
    """
    if isinstance(sort, Column):
        value = (facts.metrics if sort.kind == "metric" else facts.hparams).get(sort.name)
    elif sort in _FIGURES:
        value = getattr(facts, _FIGURES[sort])
    else:
        value = str(getattr(entry.row, sort))
    if isinstance(value, bool | str):
        return True, str(value).casefold()
    return (False, value) if isinstance(value, int | float) else None
