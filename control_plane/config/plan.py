"""Makes the plan of a search from its checked configuration."""

from __future__ import annotations

from control_plane.config.eras import Era
from control_plane.config.hyperparameters import Group, to_search_space
from control_plane.config.searcher import SearcherSection
from control_plane.searchers.era_rules import LENGTH_ERA, STEP_ERA, SearchRules
from control_plane.searchers.registry import searcher_spec
from control_plane.searchers.search import SearchPlan


class NotForeseeable(ValueError):
    """A search cannot be previewed: the user's own search method drives it."""

    def __init__(self, searcher: str) -> None:
        super().__init__(
            f"{searcher} is driven by a search method of yours: what that will ask for cannot be "
            "previewed"
        )


def search_plan(searcher: SearcherSection, space: Group, seed: int, era: Era) -> SearchPlan:
    """Plan the search, in the configuration's unit."""
    method = searcher_spec(searcher.name).make_plan(searcher, search_rules(era))
    return SearchPlan(method, to_search_space(space), seed)


def trial_count(searcher: SearcherSection, space: Group, era: Era) -> int | None:
    """Count the trials that the search creates, replacements of invalid ones aside; None where that
    is decided as it goes.
    """
    spec = searcher_spec(searcher.name)
    plan = spec.make_plan(searcher, search_rules(era))
    return spec.trial_count(searcher, plan, to_search_space(space))


def search_rules(era: Era) -> SearchRules:
    """Return the rules that searches of an era follow."""
    return STEP_ERA if era is Era.STEP else LENGTH_ERA
