"""The two eras of experiment configurations: the fields that determine the era, and the rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from pydantic import ValidationInfo

from control_plane.config.environment import DEVICE_KINDS, SHOWN_LOC, VARIABLES_LOC
from control_plane.config.problems import ConfigInvalid
from control_plane.field_types import to_integer
from control_plane.findings import Finding, Loc, path_text
from control_plane.searchers import era_rules
from control_plane.searchers.era_rules import SearchRules
from control_plane.searchers.registry import find_spec
from detcloud.shared.registries import STEP_ERA_IMAGES

Tree = Mapping[str, Any]


class Era(StrEnum):
    """The era of a configuration, which determines the units of lengths."""

    STEP = "step"
    """Lengths count steps of a fixed number of batches."""
    LENGTH = "length"
    """Lengths count batches, records or epochs."""


@dataclass(frozen=True, slots=True)
class EraRules:
    """The rules of an era for fields that both eras have."""

    era: Era
    slots_per_trial_min: int
    """The minimum of `resources.slots_per_trial`."""
    entrypoint_commands: bool
    """Whether the entrypoint may be a command line or a list of words. If False, the entrypoint is
    `module:Class`.
    """
    nested_hyperparameters: bool
    """Whether a map without `type` among the hyperparameters is a nested group."""
    global_batch_size_required: bool
    """Whether the hyperparameter `global_batch_size` is required."""
    grid_points_max: int
    """The largest number of points of a grid search."""
    grid_integers_extra: int
    """The number of integers in a range of a grid, minus maxval - minval."""
    null_hides: bool
    """Whether a null in an upper layer hides the value of a lower layer. If False, the lower value
    applies.
    """
    appended: Set[Loc]
    """The paths of lists to which lower layers add entries."""
    generated_name: str
    """The field that gets a generated text if no layer sets the field."""
    defaults: Tree
    """The defaults that only this era has."""


STEP_ERA: Final = EraRules(
    era=Era.STEP,
    slots_per_trial_min=1,
    entrypoint_commands=False,
    nested_hyperparameters=False,
    global_batch_size_required=True,
    grid_points_max=2_000,
    grid_integers_extra=0,
    null_hides=True,
    appended=frozenset({("log_policies",)}),
    generated_name="description",
    defaults=MappingProxyType(
        {
            "optimizations": {"average_training_metrics": False, "tensor_fusion_cycle_time": 5},
            "environment": {"image": STEP_ERA_IMAGES},
        }
    ),
)
LENGTH_ERA: Final = EraRules(
    era=Era.LENGTH,
    slots_per_trial_min=0,
    entrypoint_commands=True,
    nested_hyperparameters=True,
    global_batch_size_required=False,
    grid_points_max=100_000,
    grid_integers_extra=1,
    null_hides=False,
    appended=frozenset(
        {
            ("bind_mounts",),
            ("labels",),
            ("log_policies",),
            ("resources", "devices"),
            VARIABLES_LOC,
            SHOWN_LOC,
            *((*VARIABLES_LOC, kind) for kind in DEVICE_KINDS),
        }
    ),
    generated_name="name",
    defaults=MappingProxyType({}),
)
RULES: Final = MappingProxyType({Era.STEP: STEP_ERA, Era.LENGTH: LENGTH_ERA})

PERIODS: Final = ("min_validation_period", "min_checkpoint_period")
STEP_SEARCHER_FIELDS: Final = ("max_steps", "target_trial_steps", "step_budget", "steps_per_round")
LENGTH_SEARCHER_FIELDS: Final = ("max_length", "max_time")
LENGTH_FIELDS: Final = ("records_per_epoch", "scheduling_unit")


@dataclass(frozen=True, slots=True)
class Scope:
    """The properties of the whole configuration that the check of a single value may use."""

    rules: EraRules
    """The rules of the configuration's era."""
    searcher: str
    """The name of the searcher in the configuration, which may be unknown. "" if absent."""

    @property
    def space_use(self) -> str:
        """The value of `SearcherSpec.space_use` of the searcher. "sampled" for an unknown name."""
        spec = find_spec(self.searcher)
        return "sampled" if spec is None else spec.space_use


def scope_of(info: ValidationInfo) -> Scope:
    """Return the scope that a validator receives as context."""
    scope = info.context
    assert isinstance(scope, Scope)
    return scope


def era_of(trees: Sequence[Tree]) -> Era:
    """Return Era.STEP if a layer sets a field of the step era, else Era.LENGTH.

    A field with null is not set.

    Args:
        trees: the layers of the configuration, the user's layer first.

    Raises:
        EraMixed: the layers have fields of both eras.
    """
    step = next((loc for tree in trees for loc in _step_fields(tree)), None)
    length = next((loc for tree in trees for loc in _length_fields(tree)), None)
    if step and length:
        own_step, own_length = step in _step_fields(trees[0]), length in _length_fields(trees[0])
        place, other = (length, step) if own_length else (step, length)
        raise EraMixed(place, step, length, None if own_step and own_length else other)
    return Era.STEP if step else Era.LENGTH


class EraMixed(ConfigInvalid):
    """The error for a configuration with fields of both eras. `problems` is empty.

    `finding` describes the conflict. `other` is the path of the conflicting field that is not at
    `finding.loc`, or None if the user's layer has both fields.
    """

    def __init__(self, place: Loc, step: Loc, length: Loc, other: Loc | None = None) -> None:
        """Set the finding at `place` about the fields `step` and `length` of the two eras.

        Args:
            place: the path of the field that the finding is shown at.
            step: the path of a field of the step era.
            length: the path of a field of the length era.
            other: the path of the field that is not at `place`. None if the user's layer has both.
        """
        self.other = other
        is_period = step[0] in PERIODS
        instead = "use a length like {batches: 100} there, or " if is_period else ""
        if step == ("batches_per_step",):
            instead = "write scheduling_unit for batches_per_step, or "
        self.finding = Finding(
            place,
            f"mixes the eras: {path_text(step)} counts steps, but {path_text(length)} counts"
            " batches, records or epochs",
            f"{instead}use the fields of one era only; config check --migrate rewrites steps as"
            " lengths",
        )
        super().__init__([])


def search_rules(era: Era) -> SearchRules:
    """Return the rules of the search methods in an era."""
    return era_rules.STEP_ERA if era is Era.STEP else era_rules.LENGTH_ERA


def _step_fields(tree: Tree) -> Iterator[Loc]:
    yield from _present_fields(tree, ("searcher",), STEP_SEARCHER_FIELDS)
    yield from _present_fields(tree, (), ("batches_per_step",))
    for name in PERIODS:
        value = to_integer(tree.get(name))
        if isinstance(value, int) and not isinstance(value, bool):
            yield (name,)


def _length_fields(tree: Tree) -> Iterator[Loc]:
    yield from _present_fields(tree, ("searcher",), LENGTH_SEARCHER_FIELDS)
    yield from _present_fields(tree, (), LENGTH_FIELDS)
    yield from ((name,) for name in PERIODS if isinstance(tree.get(name), dict))


def _present_fields(tree: Tree, parent: tuple[str, ...], names: Sequence[str]) -> Iterator[Loc]:
    section: Any = tree
    for key in parent:
        section = section.get(key)
    if isinstance(section, Mapping):
        yield from ((*parent, name) for name in names if section.get(name) is not None)
