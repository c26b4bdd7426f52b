"""The specification of a searcher, through which all other code uses the searcher.

A module of control_plane/searchers/methods contains one searcher: options, plan, state, method and,
at the end, `SPEC`. Configurations, previews, the driver of a search and the codec of stored plans
and states use searchers only through specifications.
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
    """A part of a search that a preview runs: one bracket, or the whole search.

    Trials of different parts are not compared with each other.
    """

    plan: MethodPlan
    """The plan of the part. The preview runs the method of the plan with made-up metrics."""
    depends_on_results: bool = False
    """Whether real metrics could lead to other lengths than the made-up metrics."""
    has_expectation: bool = True
    """Whether the lengths can be estimated before results exist."""
    expected_stops: Mapping[int, int] | None = None
    """The expected number of trials that stop at each length. None: the numbers of the preview."""
    report_times: tuple[int, ...] = ()
    """The values of the time metric at which simulated trials report. Empty without a time metric.
    """


def no_findings(options: SearcherOptions, rules: SearchRules) -> Iterator[Finding]:
    """Return no findings, for options that need no checks beyond the field types."""
    return iter(())


@dataclass(frozen=True, kw_only=True)
class SearcherSpec(Generic[Options, Plan]):
    """The specification of one searcher.

    Searchers with the same `plan_type` also share `state_type` and `make_method`. The codec
    distinguishes stored plans by the field `kind`. Fields with default values are not stored:
    if `kind` has a default, no other plan type may have the same fields without defaults.
    """

    name: str
    """The searcher's name in configurations. The module has the same name."""
    length_options: type[Options]
    """The options in configurations of the length era."""
    plan_type: type[Plan]
    """The type of the plans: a frozen dataclass, which is stored."""
    state_type: type[MethodState]
    """The type of the states: a frozen dataclass, which is stored."""
    make_plan: Callable[[Options, SearchRules], Plan]
    """Makes a plan by the rules of an era, with lengths in the unit of the options."""
    make_method: Callable[[Plan, Group, BlobStore], SearchMethod[Any]]
    """Makes the search method from a plan, the hyperparameter space and the search's blobs."""
    trial_count: Callable[[Options, Plan, Group], int | None]
    """Returns the number of trials that a search creates, without replacements of invalid trials.
    None if the number is not known in advance.
    """
    preview: Callable[[Plan], Sequence[PreviewPart]] | None
    """Returns the parts that a preview runs, in the order of the parts' first trials. None: the
    search cannot be previewed.
    """
    step_options: type[Options] | None = None
    """The options in configurations of the step era. None: the step era lacks the searcher."""
    find_problems: Callable[[Options, SearchRules], Iterator[Finding]] = no_findings
    """Yields problems of options that are individually valid, for example in combination."""
    space_use: Literal["sampled", "grid", "constant"] = "sampled"
    """The use of the hyperparameter space. "grid": every range needs a count. "constant": the
    search draws a single point, and the check of a configuration warns about ranges.
    """
    trains_to_end: bool = False
    """Whether each trial trains to the full length, regardless of results."""
    can_continue: bool = False
    """Whether an ended search can be continued. Requires that results of one trial do not affect
    other trials.
    """
    read_brackets: ReadBrackets | None = None
    """Reads the progress by bracket and rung. None: the searcher has no rungs."""
    rung_lengths: Callable[[Plan], Sequence[int]] | None = None
    """Returns the lengths of the rungs of all brackets, in increasing order. None: the searcher has
    no rungs, or rounds whose trials were trained for different lengths.
    """
    training_count: Callable[[Options], int] | None = None
    """Returns how many times a search trains the first length in total. None: once in each trial.
    """
    listing_order: int = 100
    """The position in lists: smaller numbers first, equal numbers sorted by name."""
