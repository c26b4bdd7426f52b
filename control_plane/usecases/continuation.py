"""Continuation of an experiment with a larger length or more restarts."""

import json
from collections.abc import Sequence

from control_plane.actors.experiment.state import Definition
from control_plane.actors.messages.experiment import ContinueRequested
from control_plane.agents.spec import parse_stored_config
from control_plane.config.check import check_config
from control_plane.config.experiment import ExperimentConfig
from control_plane.config.problems import ConfigInvalid
from control_plane.config.section import REVEAL
from control_plane.errors import RequestError, invalid
from control_plane.searchers.methods.single import SinglePlan
from control_plane.searchers.search import SearchPlan
from control_plane.usecases.config_errors import config_error

LENGTHS = ("searcher.max_length", "searcher.max_steps")
RESTARTS = "max_restarts"
_ALLOWED = (*LENGTHS, RESTARTS)


def continue_command(definition: Definition, overrides: Sequence[str]) -> ContinueRequested:
    """Check the overrides and return the command that continues an experiment; send nothing.

    If no value changes, the command has neither a configuration nor a plan.

    Args:
        definition: the experiment's definition.
        overrides: values as `path=value`. Only the length and max_restarts can change, and they can
            only increase. Only the single searcher's length can change, in the unit as before, and
            not in a test run.

    Raises:
        RequestError: invalid, if an override changes another field, decreases a value, changes a
            length that cannot change, or makes the configuration invalid.
    """
    for override in overrides:
        _check_allowed(override)
    if not overrides:
        return ContinueRequested(limits_open_trials=True)
    before = parse_stored_config(definition)
    after = _apply_overrides(before, overrides)
    if after.max_restarts < before.max_restarts:
        raise _smaller_error(RESTARTS, before.max_restarts, after.max_restarts)
    plan = _longer_plan(definition, before, after)
    if plan is None and after.max_restarts == before.max_restarts:
        return ContinueRequested(limits_open_trials=True)
    return ContinueRequested(
        limits_open_trials=True,
        config=after.to_json().decode(),
        plan=plan,
        max_restarts=after.max_restarts,
    )


def _check_allowed(override: str) -> None:
    """Check that an override `path=value` changes a field of _ALLOWED or a part of the field.

    For example, `searcher.max_length.batches=10` changes a part of `searcher.max_length`.

    Raises:
        RequestError: invalid, for any other path.
    """
    name = override.partition("=")[0].strip()
    # The path of a length may end with a unit: searcher.max_length.batches.
    if not any(name == allowed or name.startswith(f"{allowed}.") for allowed in _ALLOWED):
        text = f"{name!r:.100} cannot be changed when an experiment is continued"
        raise invalid("overrides", text, f"these can: {', '.join(_ALLOWED)}")


def _apply_overrides(before: ExperimentConfig, overrides: Sequence[str]) -> ExperimentConfig:
    """Return the checked configuration with the overrides, each `path=value`, applied.

    `before` does not change.

    Accept overrides of any field, because `_check_allowed` has checked the paths. Accept masks as
    the values of secrets. The seed stays.

    Raises:
        RequestError: invalid, if an override is malformed or the new configuration is invalid.
    """
    text = json.dumps(before.model_dump(mode="json", context=REVEAL), ensure_ascii=False)
    try:
        return check_config(
            text,
            overrides=overrides,
            seed_default=before.experiment_seed,
            # Earlier versions stored masks that were submitted as values.
            accepts_masks=True,
        )
    except ConfigInvalid as error:
        raise config_error(error) from None


def _longer_plan(
    definition: Definition, before: ExperimentConfig, after: ExperimentConfig
) -> SearchPlan | None:
    """Return the plan of the search with the increased length.

    Return None if the length stays the same.

    Raises:
        RequestError: invalid, if the length decreases, changes its unit, cannot be changed, or is
            new.
    """
    if before.searcher.is_open_ended and not after.searcher.is_open_ended:
        text = "the experiment has no length: its code decides how long a trial trains"
        raise invalid("searcher.max_length", text)
    lengths = zip(before.searcher.lengths().items(), after.searcher.lengths().values(), strict=True)
    for (name, old), new in lengths:
        path = f"searcher.{name}"
        if new == old:
            continue
        if not isinstance(definition.plan.method, SinglePlan) or definition.test_mode:
            kind = "a test run" if definition.test_mode else f"a search by {before.searcher.name}"
            raise invalid(path, f"{kind} cannot be lengthened, only the single searcher can")
        if new.unit != old.unit:
            raise invalid(path, f"must be in {old.unit} as before, not in {new.unit}")
        if new.count < old.count:
            raise _smaller_error(path, old.count, new.count)
        return after.search_plan()
    return None


def _smaller_error(path: str, before: int, after: int) -> RequestError:
    """Return RequestError invalid for a value that is below the present value; raise nothing."""
    return invalid(path, f"must be at least {before}, as before, not {after}")
