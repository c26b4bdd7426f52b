"""The specification of a searcher: all that the rest of the product knows of it.

A file of control_plane/searchers/methods holds one searcher: its options, its plan, its state, its
method and, at the end, `SPEC`. Configurations, plans, previews, the driver of a search and the
codec of what is stored know searchers by their specifications alone.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from control_plane.findings import Finding
from control_plane.searchers.blob_store import BlobStore
from control_plane.searchers.bracket_progress import ReadBrackets
from control_plane.searchers.era_rules import SearchRules
from control_plane.searchers.method import MethodPlan, MethodState, SearchMethod
from control_plane.searchers.options import SearcherOptions
from control_plane.searchers.space import Group

Options = TypeVar("Options", bound=SearcherOptions)
Plan = TypeVar("Plan", bound=MethodPlan)


@dataclass(frozen=True, slots=True)
class PreviewPart:
    """Trials that are compared with each other and with no others: a bracket or a whole search.

    A preview runs the method of `plan`, whose trials report metrics that were made up.
    """

    plan: MethodPlan
    depends_on_results: bool = False
    """Whether real metrics could lead to other lengths than the made-up ones."""
    has_expectation: bool = True
    """Whether anything is known of the lengths before there are results."""
    expected_stops: Mapping[int, int] | None = None
    """By length how many trials are to be expected to stop there; None: as many as in the preview.
    """
    report_times: tuple[int, ...] = ()
    """Where a time metric measures the trials: the times at which they report."""


def no_findings(options: SearcherOptions, rules: SearchRules) -> Iterator[Finding]:
    """Find nothing wrong: the types of the options say all that is to be said of them."""
    return iter(())


@dataclass(frozen=True, kw_only=True)
class SearcherSpec(Generic[Options, Plan]):
    """One searcher.

    Searchers that are planned alike share `plan_type`, `state_type` and `make_method`. A plan's
    type has a `kind` of its own, by which the codec tells plans apart; where it has a default,
    which messages leave out, no other type requires the same fields.
    """

    name: str
    """What configurations call it, and what its file is called."""
    length_options: type[Options]
    """What configurations of the length era say of it."""
    plan_type: type[Plan]
    """The type of its plans: a frozen dataclass, which is stored."""
    state_type: type[MethodState]
    """The type of its states: a frozen dataclass, which is stored."""
    make_plan: Callable[[Options, SearchRules], Plan]
    """Makes its plan by the rules of an era, with lengths in the unit of the options."""
    make_method: Callable[[Plan, Group, BlobStore], SearchMethod[Any]]
    """Binds its algorithm to a plan, to the hyperparameter space and to where the search keeps
    what grows with its trials.
    """
    trial_count: Callable[[Options, Plan, Group], int | None]
    """Counts the trials that it creates, replacements of invalid ones aside; None where that is
    decided as it goes.
    """
    preview: Callable[[Plan], Sequence[PreviewPart]] | None
    """What a preview runs, in the order of the parts' first trials; None: nobody can foresee what
    the search will do.
    """
    step_options: type[Options] | None = None
    """What configurations of the step era say of it; None: that era does not have it."""
    find_problems: Callable[[Options, SearchRules], Iterator[Finding]] = no_findings
    """Yields what is wrong with options that are valid one by one."""
    space_use: Literal["sampled", "grid", "constant"] = "sampled"
    """How it uses the hyperparameter space: points of a grid need a count in every range; in the
    step era a "constant" space has no ranges.
    """
    trains_to_end: bool = False
    """Whether each trial trains to the full length, whatever its results."""
    read_brackets: ReadBrackets | None = None
    """Reads how far its trials have come by bracket and rung; None: they are not compared so."""
    training_count: Callable[[Options], int] | None = None
    """Counts how often the first length is trained; None: once by each trial."""
    listing_order: int = 100
    """Where lists show it: those with less come first, and equal ones by name."""
