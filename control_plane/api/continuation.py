"""What an experiment is continued with: overrides that lengthen it or let its trials fail more."""

import json
from typing import Annotated

from pydantic import Field

from control_plane.actors.experiment_messages import ContinueRequested
from control_plane.actors.experiment_state import Definition
from control_plane.agents.spec import stored_config
from control_plane.api.bodies import RequestBody
from control_plane.api.errors import ApiError, invalid
from control_plane.api.submission import config_invalid
from control_plane.config import ConfigInvalid, ExperimentConfig, check
from control_plane.config.section import REVEAL
from control_plane.searchers.search import SearchPlan
from control_plane.searchers.single import SinglePlan

LENGTHS = ("searcher.max_length", "searcher.max_steps")
RESTARTS = "max_restarts"
_ALLOWED = (*LENGTHS, RESTARTS)


class Continue(RequestBody):
    """The body of `POST /experiments/{id}/continue`."""

    overrides: Annotated[list[Annotated[str, Field(max_length=4096)]], Field(max_length=20)] = []


def continuation(definition: Definition, asked: Continue) -> ContinueRequested:
    """The command that continues the experiment with these overrides.

    Raises:
        ApiError: invalid; they change something else, make less of it, or are no configuration.
    """
    for override in asked.overrides:
        _check_allowed(override)
    if not asked.overrides:
        return ContinueRequested()
    before = stored_config(definition)
    after = _overridden(before, asked.overrides)
    if after.max_restarts < before.max_restarts:
        raise _no_less(RESTARTS, before.max_restarts, after.max_restarts)
    plan = _lengthened(definition, before, after)
    if plan is None and after.max_restarts == before.max_restarts:
        return ContinueRequested()
    return ContinueRequested(
        config=after.to_json().decode(),
        plan=plan,
        max_restarts=after.max_restarts,
    )


def _check_allowed(override: str) -> None:
    name = override.partition("=")[0].strip()
    # A length may be given by its unit: searcher.max_length.batches.
    if not any(name == allowed or name.startswith(f"{allowed}.") for allowed in _ALLOWED):
        text = f"{name!r:.100} cannot be changed when an experiment is continued"
        raise invalid("overrides", text, f"these can: {', '.join(_ALLOWED)}")


def _overridden(before: ExperimentConfig, overrides: list[str]) -> ExperimentConfig:
    text = json.dumps(before.model_dump(mode="json", context=REVEAL), ensure_ascii=False)
    try:
        return check(text, overrides=overrides, seed_default=before.experiment_seed)
    except ConfigInvalid as error:
        raise config_invalid(error) from None


def _lengthened(
    definition: Definition, before: ExperimentConfig, after: ExperimentConfig
) -> SearchPlan | None:
    """The search with its new length, None where that stays."""
    lengths = zip(before.searcher.lengths().items(), after.searcher.lengths().values(), strict=True)
    for (name, old), new in lengths:
        path = f"searcher.{name}"
        if new == old:
            continue
        if not isinstance(definition.plan.method, SinglePlan) or definition.test_mode:
            kind = "a test run" if definition.test_mode else f"a search by {before.searcher.name}"
            raise invalid(path, f"{kind} cannot be lengthened, only one by single can")
        if new.unit != old.unit:
            raise invalid(path, f"must be in {old.unit} as before, not in {new.unit}")
        if new.count < old.count:
            raise _no_less(path, old.count, new.count)
        return after.search_plan()
    return None


def _no_less(path: str, before: int, after: int) -> ApiError:
    return invalid(path, f"must be at least {before}, as before, not {after}")
