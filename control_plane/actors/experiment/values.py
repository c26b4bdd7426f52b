"""The values row of an experiment: the hyperparameters and metrics that lists show and sort by.

The row is separate from the listing row, so that lists without such columns read as much as before.
The row is written at the submission, and again when an ended experiment has figures (listing.py).
While the experiment runs, its state has the metrics.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from control_plane.actors.experiment.state import (
    Definition,
    ExperimentState,
    definition_of,
    listing_sort_key,
)
from control_plane.actors.step import StepContext
from control_plane.rows import experiment_rows
from control_plane.searchers.space import Categorical, Const, Double, Group, Int, Leaf, Log
from detcloud.shared.dotted_paths import name_text

VALUES = experiment_rows.VALUES.partition
"""The partition of values rows, one for each experiment."""
HPARAMS_MAX = 40
"""The most hyperparameters in a row, the first by name."""
CHOICES_MAX = 20
"""The most choices of a hyperparameter in a row, the first ones."""
NAME_CHARACTERS_MAX = 100
"""The most characters of a hyperparameter's path. Longer paths are left out."""
TEXT_CHARACTERS_MAX = 100
"""The most characters of a text or a list as JSON. Longer values are left out."""


class ExperimentValues(NamedTuple):
    """An experiment's values row."""

    hparams: Mapping[str, object]
    """The hyperparameters by dotted path. A constant is a JSON scalar, or the JSON text of a list
    or an empty object. A range is `{"min": number, "max": number}`, and a choice `{"any": [...]}`.
    """
    metrics: Mapping[str, float]
    """The metrics of the best validation by name. Empty without a validation, and while the
    experiment runs.
    """


NO_VALUES = ExperimentValues({}, {})


def write_values_row(state: ExperimentState, context: StepContext) -> None:
    """Write the experiment's values row. Do nothing without `has_values_row`."""
    if not state.has_values_row:
        return
    row: dict[str, object] = {"hparams": listed_hparams(definition_of(context))}
    if metrics := listed_metrics(state):
        row["metrics"] = metrics
    context.write_row(VALUES, listing_sort_key(state.experiment_id), json.dumps(row).encode())


def listed_metrics(state: ExperimentState) -> dict[str, float]:
    """Return the metrics of the experiment's best validation by name. {} without a validation."""
    if state.best_metric is None or not math.isfinite(state.best_metric):
        return {}
    return {**state.best_values, state.metric: state.best_metric}


def listed_hparams(definition: Definition) -> dict[str, object]:
    """Return the hyperparameters of a definition in the form of the values row."""
    leaves = (
        (path, shown)
        for path, leaf in _leaves(definition.plan.space, "")
        if len(path) <= NAME_CHARACTERS_MAX and (shown := _listed_value(leaf)) is not None
    )
    return dict(list(leaves)[:HPARAMS_MAX])


def decode_values(bodies: Iterable[bytes]) -> list[ExperimentValues]:
    """Decode values rows, in order. Decoding thousands in a single call is many times faster.

    Raises:
        ValueError: a body is not JSON.
    """
    return [
        ExperimentValues(fields.get("hparams", {}), fields.get("metrics", {}))
        for fields in json.loads(b"[%s]" % b",".join(bodies))
    ]


def _leaves(group: Group, prefix: str) -> Iterator[tuple[str, Leaf]]:
    """Yield the dotted path and the parameter of each leaf of a group, sorted by names."""
    for name in sorted(group.members):
        member, path = group.members[name], f"{prefix}{name_text(name)}"
        if isinstance(member, Group):
            yield from _leaves(member, f"{path}.")
        else:
            yield path, member


def _listed_value(leaf: Leaf) -> object | None:
    """Return a parameter in the form of the values row. Return None for too long a value."""
    match leaf:
        case Const(value):
            return _listed_constant(value)
        case Int(minval, maxval) | Double(minval, maxval):
            return {"min": minval, "max": maxval}
        case Log(base, minval, maxval):
            return {"min": math.pow(base, minval), "max": math.pow(base, maxval)}
        case Categorical(vals):
            choices = [_listed_constant(value) for value in vals[:CHOICES_MAX]]
            return {"any": [choice for choice in choices if choice is not None]}


def _listed_constant(value: object) -> object | None:
    """Return a constant as a JSON scalar. Lists and objects become JSON text, and null the text
    `null`. Return None for a text that is too long.
    """
    if isinstance(value, bool | int | float):
        return value
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= TEXT_CHARACTERS_MAX else None
