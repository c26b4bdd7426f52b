"""Columns of lists of experiments: the metrics and hyperparameters that a request names."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from control_plane.actors.experiment.state import Definition, ExperimentState
from control_plane.actors.experiment.values import listed_hparams, listed_metrics
from control_plane.errors import invalid
from control_plane.queries.answer import Answer
from detcloud.shared.dotted_paths import PathInvalid, join_names, split_assignment

COLUMNS_MAX: Final = 20
"""The most columns in a request."""
COLUMN_CHARACTERS_MAX: Final = 200
"""The most characters of a column in a request."""

ColumnKind = Literal["metric", "hparam"]


class Range(Answer):
    """The range of a hyperparameter that a search varies."""

    min: float
    max: float


class Choice(Answer):
    """The choices of a hyperparameter that a search varies, 20 at most."""

    any: list[bool | int | float | str]


ListedValue = bool | int | float | str | Range | Choice | None
"""A value of a column: a metric, a constant, or the range or the choices of a search. None: the
experiment has no such value.
"""


@dataclass(frozen=True)
class Column:
    """A column of a list, as in `metric:loss` or `hparam:optimizer.lr`."""

    text: str
    """The column as the request names it."""
    kind: ColumnKind
    name: str
    """The name of a metric, or the dotted path of a hyperparameter."""


def parse_column(text: str, parameter: str) -> Column:
    """Parse a column like `metric:loss`.

    Args:
        text: the text of the column.
        parameter: the name of the request's parameter, for the error.

    Raises:
        RequestError: invalid, for another text.
    """
    kind, _, name = text.partition(":")
    if len(text) <= COLUMN_CHARACTERS_MAX and name:
        if kind == "metric":
            return Column(text, "metric", name)
        if kind == "hparam":
            return Column(text, "hparam", hparam_path(name))
    expected = "metric:NAME or hparam:PATH, as in metric:loss or hparam:optimizer.lr"
    raise invalid(parameter, f"{text!a:.80} is not a column; expected {expected}")


def hparam_path(text: str) -> str:
    """Return a dotted path in the form of the values row, with quotes only where needed.

    A text that is not a path is returned unchanged, and matches no hyperparameter.
    """
    try:
        path, _ = split_assignment(f"{text}=")
    except PathInvalid:
        return text
    return join_names(path.names)


def values_of(
    state: ExperimentState, definition: Definition, columns: Sequence[Column]
) -> dict[str, ListedValue]:
    """Return the values of an experiment by the texts of the columns."""
    metrics = listed_metrics(state)
    has_hparams = any(column.kind == "hparam" for column in columns)
    hparams = listed_hparams(definition) if has_hparams else {}
    return {
        column.text: _listed_value((metrics if column.kind == "metric" else hparams), column.name)
        for column in columns
    }


def _listed_value(values: dict[str, float] | dict[str, object], name: str) -> ListedValue:
    """Return a value of a values row as in an answer. Return None without the value."""
    match values.get(name):
        case {"min": minimum, "max": maximum}:
            return Range(min=minimum, max=maximum)
        case {"any": choices}:
            return Choice(any=choices)
        case bool() | int() | float() | str() as value:
            return value
    return None
