"""Query of an experiment's family: all originals, siblings and forks.

Siblings are forks of the same original. A request reads at most ANCESTORS_MAX originals, FORKS_MAX
siblings and FORKS_MAX forks.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from control_plane.actors.experiment.state import Definition, ExperimentState, forks_partition
from control_plane.agents.spec import parse_stored_config
from control_plane.config.stated_fields import submitted_values
from control_plane.engine.experiment_reader import Defined
from control_plane.findings import Loc, path_text
from control_plane.queries.answer import Answer
from control_plane.queries.conditions import ExperimentCondition
from control_plane.queries.experiment import get_experiment
from control_plane.queries.job_counts import experiment_conditions
from control_plane.services import Services

ANCESTORS_MAX: Final = 10
"""The most originals above the experiment: its original, the original of the original, ..."""
FORKS_MAX: Final = 20
"""The most forks of the experiment, and of its original. The newest forks are chosen."""
DIFFERENCES_MAX: Final = 20
"""The most differences of a member."""
VALUE_CHARACTERS_MAX: Final = 200
"""The most characters of a value in a difference. A longer value is cut."""
COMPARED_SECTIONS: Final = ("hyperparameters", "searcher")
"""The sections of the configuration in which members are compared."""


class ConfigDifference(Answer):
    """A field of the submitted configuration that differs from the original's.

    `before` is the original's value, and `after` the member's. Null: the configuration does not
    set the field. The JSON of a long value is cut, and ends with `…`.
    """

    path: str
    before: Any = None
    after: Any = None


class FamilyMember(Answer):
    """An experiment of a family.

    `differences` compares the hyperparameters and the search with those of `forked_from`. The list
    is null if the original is no member, for example because it was deleted. `differences_left_out`
    counts further differences. `has_other_code` is null without a comparison.
    """

    id: int
    name: str
    user: str
    state: str
    condition: ExperimentCondition
    archived: bool
    metric: str
    smaller_is_better: bool
    best_metric: float | None
    created_ms: int
    forked_from: int | None
    differences: list[ConfigDifference] | None
    differences_left_out: int = 0
    has_other_code: bool | None = None


class Family(Answer):
    """The family of an experiment.

    `members` is a tree in depth-first order: each original precedes its forks, and forks are
    sorted by id. `is_cut` is true if the experiment or its original has more forks, of which the
    newest are members, or if the first member has an original that is not read.
    """

    experiment_id: int
    members: list[FamilyMember]
    is_cut: bool


class _Forks(NamedTuple):
    """The forks of an experiment."""

    ids: tuple[int, ...]
    """The ids of the newest forks, in order."""
    is_cut: bool
    """Whether the experiment has older forks."""


def describe_family(services: Services, experiment_id: int) -> Family:
    """Return the experiment with all originals, siblings and forks.

    An experiment that is no fork and has no forks is the only member. Deleted experiments are left
    out.

    Raises:
        RequestError: not_found, if the experiment does not exist or was deleted.
        ValueError, KeyError: a stored configuration is not valid for this release.
    """
    own = get_experiment(services, experiment_id)
    ancestors, is_cut = _read_ancestors(services, own[1])
    forks = _read_forks(services, experiment_id)
    siblings = _Forks((), False)
    if own[1].forked_from is not None:
        siblings = _read_forks(services, own[1].forked_from)
    others = [number for number in (*siblings.ids, *forks.ids) if number != experiment_id]
    loaded, _ = services.experiments.read_experiments(others)
    members = {pair[0].experiment_id: pair for pair in (*ancestors, own)}
    members |= {pair[0].experiment_id: pair for pair in loaded if pair is not None}
    conditions = experiment_conditions(services, (state for state, _ in members.values()))
    return Family(
        experiment_id=experiment_id,
        members=[
            _member(*members[number], members, conditions[number]) for number in _tree(members)
        ],
        is_cut=is_cut or forks.is_cut or siblings.is_cut,
    )


def _read_ancestors(services: Services, definition: Definition) -> tuple[list[Defined], bool]:
    """Read the originals of an experiment, the first original first. Stop at a deleted original.

    Return at most ANCESTORS_MAX originals, and whether a further original was not read.
    """
    ancestors: list[Defined] = []
    number = definition.forked_from
    while number is not None and len(ancestors) < ANCESTORS_MAX:
        found = services.experiments.read_experiment(number)
        if found is None:
            return ancestors[::-1], False
        ancestors.append(found)
        number = found[1].forked_from
    return ancestors[::-1], number is not None


def _read_forks(services: Services, experiment_id: int) -> _Forks:
    """Read the ids of the newest forks of an experiment, at most FORKS_MAX."""
    partition = forks_partition(experiment_id)
    page = services.table.query(partition, " ", "\x7f", limit=FORKS_MAX + 1, descending=True)
    ids = [int(row.key.sort) for row in page.rows]
    return _Forks(tuple(ids[:FORKS_MAX][::-1]), len(ids) > FORKS_MAX)


def _tree(members: Mapping[int, Defined]) -> Iterator[int]:
    """Yield the ids of all members in depth-first order. Siblings are sorted by id."""
    forks: dict[int | None, list[int]] = {}
    for number in sorted(members):
        original = members[number][1].forked_from
        forks.setdefault(original if original in members else None, []).append(number)
    open_ids = forks.pop(None, [])[::-1]
    while open_ids:
        number = open_ids.pop()
        yield number
        open_ids += forks.pop(number, [])[::-1]


def _member(
    state: ExperimentState,
    definition: Definition,
    members: Mapping[int, Defined],
    condition: ExperimentCondition,
) -> FamilyMember:
    """Return an experiment as a member, compared with the original if the original is a member."""
    original_id = definition.forked_from
    original = None if original_id is None else members.get(original_id)
    fields: dict[str, Any] = {"differences": None}
    if original is not None:
        differences = list(
            _differences(_compared_sections(original[1]), _compared_sections(definition), ())
        )
        fields = {
            "differences": differences[:DIFFERENCES_MAX],
            "differences_left_out": max(0, len(differences) - DIFFERENCES_MAX),
            "has_other_code": definition.code_sha256 != original[1].code_sha256,
        }
    return FamilyMember(
        id=state.experiment_id,
        name=state.name,
        user=state.owner,
        state=state.status,
        condition=condition,
        archived=state.archived,
        metric=state.metric,
        smaller_is_better=state.smaller_is_better,
        best_metric=state.best_metric,
        created_ms=state.created_ms,
        forked_from=original_id,
        **fields,
    )


def _compared_sections(definition: Definition) -> dict[str, Any]:
    """Return the compared sections of an experiment's submitted configuration."""
    values = submitted_values(parse_stored_config(definition), definition.stated_fields)
    return {name: values[name] for name in COMPARED_SECTIONS if name in values}


def _differences(before: Any, after: Any, loc: Loc) -> Iterator[ConfigDifference]:
    """Yield the fields in which two values differ. Maps are compared field by field."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in dict.fromkeys((*before, *after)):
            yield from _differences(before.get(name), after.get(name), (*loc, name))
    elif before != after:
        yield ConfigDifference(
            path=path_text(loc), before=_shown_value(before), after=_shown_value(after)
        )


def _shown_value(value: Any) -> Any:
    """Return a value. Return the beginning of the JSON if the JSON has more than
    VALUE_CHARACTERS_MAX characters.
    """
    text = json.dumps(value, ensure_ascii=False)
    return value if len(text) <= VALUE_CHARACTERS_MAX else f"{text[:VALUE_CHARACTERS_MAX]}…"
