"""Rules between the sections of a configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from control_plane.config.eras import Era, Scope
from control_plane.config.experiment import ExperimentConfig, runs_on_one_machine
from control_plane.config.hyperparameters import Categorical, Const, Int, grid_points, leaves
from control_plane.config.lengths import is_count
from control_plane.config.plan import budgeted_trials
from control_plane.config.problems import Finding, Loc, path_text
from control_plane.config.searcher import NO_SEARCHER, TRIALS_MAX, Halving, Population, Searcher
from control_plane.config.section import COUNT_MAX

Rule = Callable[[ExperimentConfig, Scope], Iterator[Finding]]

BATCH_SIZE: Final = "global_batch_size"


def inconsistencies(
    config: ExperimentConfig, scope: Scope, refused: frozenset[str]
) -> Iterator[Finding]:
    """What is wrong between the sections; those in `refused` are not judged again."""
    for needed, rule in _RULES:
        if not needed & refused:
            yield from rule(config, scope)


def _entrypoint(config: ExperimentConfig, scope: Scope) -> Iterator[Finding]:
    native = (config.internal or {}).get("native")
    if config.entrypoint is None and not native:
        hint = "like model_def:MyTrial"
        yield Finding(("entrypoint",), "is required", hint)


def _nodes(config: ExperimentConfig, scope: Scope) -> Iterator[Finding]:
    resources = config.resources
    if resources.is_single_node is False and runs_on_one_machine(config.entrypoint, resources):
        message = "must be true for a trial class, whose slots are on one machine so far"
        hint = "for several machines let entrypoint be a command"
        yield Finding(("resources", "is_single_node"), message, hint, False)


def _searcher(config: ExperimentConfig, scope: Scope) -> Iterator[Finding]:
    if config.searcher == NO_SEARCHER:
        length = "max_steps: 10" if scope.rules.era is Era.STEP else "max_length: {batches: 1000}"
        hint = f"like {{name: single, metric: loss, {length}}}"
        yield Finding(("searcher",), "is required", hint)


def _records_per_epoch(config: ExperimentConfig, scope: Scope) -> Iterator[Finding]:
    users = [path_text(loc) for loc, it in config.lengths().items() if it.unit == "epochs"]
    if not users and config.unit == "epochs":
        users = ["searcher.unit"]
    if users and not config.scale.records_per_epoch:
        message = f"is required, since {users[0]} counts epochs"
        yield Finding(("records_per_epoch",), message, "how many records one epoch has")


def _batch_size(config: ExperimentConfig, scope: Scope) -> Iterator[Finding]:
    lengths = config.lengths().items()
    users = [path_text(loc) for loc, it in lengths if it.unit in ("records", "epochs")]
    if not users and not scope.rules.global_batch_size_required:
        return
    loc = ("hyperparameters", BATCH_SIZE)
    if BATCH_SIZE not in config.hyperparameters:
        reason = f", to count {users[0]} in batches" if users else ""
        yield Finding(loc, f"is required{reason}", "the records in one batch over all slots")
        return
    least = _least_integer(config.hyperparameters[BATCH_SIZE])
    slots = config.resources.slots_per_trial
    if least is None:
        yield Finding(loc, "must be an integer of at least 1, or choose among such")
    elif scope.rules.global_batch_size_required and least < slots and not _is_native(config):
        message = f"must be at least slots_per_trial ({slots}), but can be {least}"
        yield Finding(loc, message, "each slot needs at least one record of a batch", least)


def _grid(config: ExperimentConfig, scope: Scope) -> Iterator[Finding]:
    if scope.searcher != "grid":
        return
    points = grid_points(config.hyperparameters, scope.rules.grid_integers_extra)
    loc = ("hyperparameters",)
    if not config.hyperparameters:
        yield Finding(loc, "is required by the grid searcher, which has no point without any")
    elif points > scope.rules.grid_points_max:
        message = (
            f"make a grid of {_shown(points)} points, at most {scope.rules.grid_points_max} are"
        )
        yield Finding(loc, f"{message} allowed", "lower a count or use the random searcher")


def _budget(config: ExperimentConfig, scope: Scope) -> Iterator[Finding]:
    trials = budgeted_trials(config.searcher, scope.rules.era)
    field = "step_budget" if scope.rules.era is Era.STEP else "budget"
    loc = ("searcher", field)
    if trials == 0:
        yield Finding(loc, "is too small: no trial would be made", "raise it, or lower the rungs")
    elif trials is not None and trials > TRIALS_MAX:
        yield Finding(loc, f"makes {_shown(trials)} trials, at most {TRIALS_MAX} are allowed")


def _population(config: ExperimentConfig, scope: Scope) -> Iterator[Finding]:
    if isinstance(config.searcher, Population) and (config.trials or 0) > TRIALS_MAX:
        trials = _shown(config.trials or 0)
        message = f"makes {trials} trials in all, at most {TRIALS_MAX} are allowed"
        yield Finding(("searcher", "num_rounds"), message, "lower it, or replace fewer in a round")


def _rungs(config: ExperimentConfig, scope: Scope) -> Iterator[Finding]:
    """No more rungs than there are lengths at which trials can be compared, where a user counts."""
    name, longest = next(iter(config.searcher.lengths().items()), ("", None))
    if longest is None:
        return
    for loc, rungs in _rungs_given(config.searcher):
        if rungs > longest.count:
            message = f"must be at most {name} ({longest.count} {longest.unit}), not {rungs}"
            yield Finding(loc, message, "each rung compares trials at a length of its own", rungs)


def _constants(config: ExperimentConfig, scope: Scope) -> Iterator[Finding]:
    if scope.searcher != "single" or not scope.rules.single_constants:
        return
    for loc, parameter in leaves(config.hyperparameters):
        if not isinstance(parameter, Const):
            hint = "use the random searcher with max_trials: 1 to draw a value"
            yield Finding(loc, "must be constant for the single searcher", hint)


def _countable(config: ExperimentConfig, scope: Scope) -> Iterator[Finding]:
    worth = {
        "steps": config.scale.batches_per_step,
        "epochs": config.scale.records_per_epoch,
    }
    for loc, length in config.lengths().items():
        if length.count * worth.get(length.unit, 1) > COUNT_MAX:
            yield Finding(loc, f"is more than {COUNT_MAX} batches or records", "", length.count)


_RULES: Final[tuple[tuple[frozenset[str], Rule], ...]] = (
    (frozenset({"entrypoint", "internal"}), _entrypoint),
    (frozenset({"entrypoint", "resources"}), _nodes),
    (frozenset({"searcher"}), _searcher),
    (frozenset({"records_per_epoch"}), _records_per_epoch),
    (frozenset({"records_per_epoch", "batches_per_step"}), _countable),
    (frozenset({"hyperparameters", "resources"}), _batch_size),
    (frozenset({"hyperparameters"}), _grid),
    (frozenset({"searcher"}), _budget),
    (frozenset({"searcher"}), _population),
    (frozenset({"searcher"}), _rungs),
    (frozenset({"hyperparameters"}), _constants),
)


def _rungs_given(searcher: Searcher) -> Iterator[tuple[Loc, int]]:
    if isinstance(searcher, Halving):
        yield ("searcher", "num_rungs"), searcher.num_rungs
    for n, rungs in enumerate(getattr(searcher, "bracket_rungs", ())):
        yield ("searcher", "bracket_rungs", n), rungs


def _least_integer(parameter: object) -> int | None:
    match parameter:
        case Const(val=value):
            values: tuple[object, ...] = (value,)
        case Int(minval=minval):
            values = (minval,)
        case Categorical(vals=vals):
            values = vals
        case _:
            return None
    counts = [value for value in values if isinstance(value, int) and is_count(value, 1)]
    return min(counts) if counts and len(counts) == len(values) else None


def _is_native(config: ExperimentConfig) -> bool:
    return config.resources.native_parallel


def _shown(points: int) -> str:
    return str(points) if points < 10**18 else "more than 10**18"
