"""The searcher `pbt`: population-based training. After each round, copies of the best trials with
changed hyperparameters replace the worst trials.

Source: Jaderberg et al., "Population Based Training of Neural Networks" (2017), with truncation
selection; the rules are those of Determined 0.12. A round ends when every member has a result.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import Annotated, Final, Literal, NamedTuple
from uuid import UUID

from annotated_types import Ge, Le

from control_plane.evolve import evolve
from control_plane.field_types import Count, Fraction, Measured, Steps
from control_plane.findings import Finding, shown_count
from control_plane.searchers.blob_store import BlobStore
from control_plane.searchers.bracket_progress import (
    BracketProgress,
    Outcome,
    RungProgress,
    RungTrial,
    SearchedTrial,
    rank_key,
)
from control_plane.searchers.era_rules import SearchRules
from control_plane.searchers.exploration import Exploration
from control_plane.searchers.halving.rungs import WORST_RESULT, signed_metric
from control_plane.searchers.method import (
    Close,
    Create,
    CreateTrial,
    Event,
    MethodState,
    MethodStep,
    Operation,
    SearchMethod,
    Tally,
    TrainTo,
    TrialClosed,
    TrialExitedEarly,
    TrialLengthReached,
)
from control_plane.searchers.options import TRIALS_MAX, OptionGroup, SearcherOptions
from control_plane.searchers.population_records import Member, PopulationRecords
from control_plane.searchers.spec import PreviewPart, SearcherSpec
from control_plane.searchers.stored_points import Point, store_point

_MEMBERS = "members"
"""The list of the trials in the current round."""
_PENDING = "pending"
"""The list of the trials that `close_more` closes and copies."""
_MEMBERS_AT_ONCE = 1_000
"""The largest number of members for which the changes at the end of a round fit into one commit."""

POPULATION_MAX: Final = 10_000


class Truncation(OptionGroup):
    """The options for the replacement of trials after a round."""

    truncate_fraction: Annotated[float, Ge(0), Le(0.5)]
    """The share of the population that is replaced after a round."""


class ExplorationOptions(OptionGroup):
    """The options for the hyperparameters of copies."""

    resample_probability: Fraction
    """The probability that a hyperparameter is sampled again."""
    perturb_factor: Fraction
    """The share by which all other numbers are raised or lowered."""
    move_integers: bool = True
    """Whether a raised or lowered integer changes by at least one. `false` is the rule of
    Determined 0.12, by which 0 and small negative integers stay as they are.
    """


class PopulationOptions(SearcherOptions):
    """The options of `pbt` in both eras."""

    population_size: Annotated[int, Ge(1), Le(POPULATION_MAX)]
    """The number of trials in a round."""
    num_rounds: Count
    """The number of rounds."""
    replace_function: Truncation
    """`{truncate_fraction: ...}`: the share of trials that is replaced after a round."""
    explore_function: ExplorationOptions
    """`{resample_probability: ..., perturb_factor: ...}`: how the hyperparameters of copies are
    changed.
    """


class StepPbt(PopulationOptions):
    """Population-based training: after each round, copies of the best trials replace the worst."""

    steps_per_round: Steps
    """The number of steps that each trial trains in a round."""


class LengthPbt(PopulationOptions):
    """Population-based training: after each round, copies of the best trials replace the worst."""

    length_per_round: Measured
    """The length that each trial trains in a round."""


@dataclass(frozen=True, slots=True)
class PopulationPlan:
    """The plan of a search by population-based training."""

    length_per_round: int
    population_size: int
    """The number of trials in a round."""
    num_rounds: int
    truncate_fraction: float
    """The share of trials that is replaced after each round but the last; at most 0.5."""
    exploration: Exploration
    smaller_is_better: bool
    rules: SearchRules
    kind: Literal["pbt"] = "pbt"
    integers_move: bool = False
    """Whether a copy's integers change by at least 1. False for plans of earlier versions."""

    @property
    def max_length(self) -> int:
        """Return the longest training of a trial: all rounds together, for a trial that is never
        replaced.
        """
        return self.length_per_round * self.num_rounds

    @property
    def replaced_count(self) -> int:
        """Return the number of trials that are replaced after each round but the last."""
        return int(self.truncate_fraction * self.population_size)

    @property
    def max_trials(self) -> int:
        """Return the number of trials in total, copies included. Failures reduce the number."""
        return self.population_size + self.replaced_count * (self.num_rounds - 1)


@dataclass(frozen=True)
class PopulationState(MethodState):
    """The state of a search by population-based training."""

    members: int
    """The number of trials in the current round."""
    listed: int = 0
    """The number of members of the current round that are created."""
    rounds: int = 0
    """The number of completed rounds, which is also the index of the current round."""
    results: int = 0
    """The number of members with a result in the current round."""
    copies: int = 0
    """The number of copies in all rounds."""
    kind: Literal["pbt"] = "pbt"
    pending: int = 0
    """The number of trials in the list of trials that `close_more` closes and copies."""
    pending_closes: int = 0
    """The number of trials, at the start of that list, that are closed; all others are copied."""
    changed: int = 0
    """The number of trials, at the start of that list, that `close_more` has processed."""

    @property
    def is_closing(self) -> bool:
        """Return whether `close_more` has trials left to close or to copy; see MethodState."""
        return self.changed < self.pending


class PopulationSearch(SearchMethod[PopulationState]):
    """The method of population-based training: decides about all members after each round."""

    def __init__(self, plan: PopulationPlan, blobs: BlobStore) -> None:
        self._plan = plan
        self._blobs = blobs
        self._records = PopulationRecords(blobs)

    def first_step(self) -> MethodStep[PopulationState]:
        """Return the first state, and the creation of the population."""
        size, length = self._plan.population_size, self._plan.length_per_round
        create = Create(size, "Sampled", first_point=0, length=length, closed=False)
        return MethodStep(PopulationState(size), (create,))

    def on_trial_created(self, state: PopulationState, created: CreateTrial) -> PopulationState:
        """Write the records of a new member of the round, and return the next state."""
        request_id = UUID(created.request_id).bytes
        self._records.write_member(created.trial, Member(state.rounds, request_id=request_id))
        store_point(self._blobs, created.trial, Point(created.hparams))
        self._records.append_number(_MEMBERS, state.listed, created.trial)
        return evolve(state, listed=state.listed + 1)

    def on_event(self, state: PopulationState, event: Event) -> MethodStep[PopulationState]:
        """Return the next state and the operations after a result or the end of a trial.

        A trial that ends on its own gets the worst result, also in place of a result in the current
        round. A trial that `close_more` is going to close is only marked as closed. The last result
        of a round also ends the round.
        """
        match event:
            case TrialLengthReached():
                member = self._records.read_member(event.trial)
                length = (state.rounds - member.first_round + 1) * self._plan.length_per_round
                has_result = member.closed or member.result_round == state.rounds
                if has_result or event.length != length:
                    return MethodStep(state)
                result = signed_metric(event.metric, self._plan.smaller_is_better)
                after = member._replace(result_round=state.rounds, result=result)
                return self._add_result(state, event.trial, after)
            case TrialClosed() | TrialExitedEarly():
                member = self._records.read_member(event.trial)
                if member.closed:
                    return MethodStep(state)
                if self._is_pending_close(state, event.trial):
                    self._records.write_member(event.trial, member._replace(closed=True))
                    return MethodStep(state)
                after = member._replace(closed=True, result_round=state.rounds, result=WORST_RESULT)
                if member.result_round < state.rounds:
                    return self._add_result(state, event.trial, after)
                self._records.write_member(event.trial, after)
                return MethodStep(state)
            case _:
                return MethodStep(state)

    def close_more(
        self, state: PopulationState, trials: int, close_max: int
    ) -> MethodStep[PopulationState]:
        """Return closes and copies of the next trials in the list; see SearchMethod."""
        pending = list(self._records.read_numbers(_PENDING, state.pending))
        end = min(state.changed + close_max, state.pending)
        operations: list[Operation] = []
        for place in range(state.changed, end):
            trial = pending[place]
            if place >= state.pending_closes:
                operations.append(self._copy_of(trial))
                continue
            member = self._records.read_member(trial)
            if not member.closed:
                self._records.write_member(trial, member._replace(closed=True))
                operations.append(Close(trial))
        if end < state.pending:
            return MethodStep(evolve(state, changed=end), operations)
        return MethodStep(evolve(state, pending=0, pending_closes=0, changed=0), operations)

    def progress(self, state: PopulationState, tally: Tally) -> float:
        """Return the completed share of the training of all rounds.

        In the step era, validations and the checkpoints of copied trials count as well.
        """
        plan = self._plan
        training = plan.num_rounds * plan.population_size * plan.length_per_round
        if not plan.rules.progress_in_workloads:
            return tally.units / training
        validations = plan.num_rounds * plan.population_size
        checkpoints = (plan.num_rounds - 1) * plan.replaced_count
        done = tally.units + tally.reached + state.copies
        return done / (training + validations + checkpoints)

    def _add_result(
        self, state: PopulationState, trial: int, member: Member
    ) -> MethodStep[PopulationState]:
        """Write a record with a new result, and end the round after the last result."""
        self._records.write_member(trial, member)
        state = evolve(state, results=state.results + 1)
        return MethodStep(state) if state.results < state.members else self._end_round(state)

    def _end_round(self, state: PopulationState) -> MethodStep[PopulationState]:
        """Return the first state of the next round, and the operations at the end of a round.

        The worst members are closed, the best are copied, and all members except the worst train
        on. Members that have ended are neither copied nor trained. After the last round, all
        members are closed. For more than _MEMBERS_AT_ONCE members, `close_more` returns the closes
        and copies later.
        """
        plan, rounds = self._plan, state.rounds + 1
        members = {
            trial: self._records.read_member(trial)
            for trial in self._records.read_numbers(_MEMBERS, state.listed)
        }
        is_last = rounds >= plan.num_rounds
        if len(members) > _MEMBERS_AT_ONCE and is_last:
            ended = evolve(state, rounds=rounds, results=0)
            return self._change_in_steps(ended, members, closing=[*members], copied=[])
        if is_last:
            closed = self._close_trials(members, members)
            return MethodStep(evolve(state, rounds=rounds, results=0), closed)
        ranked = sorted(members, key=lambda trial: _rank_key(members[trial]))
        # Failures can shrink the population. No trial may be both copied and replaced.
        replaced = min(plan.replaced_count, len(ranked) // 2)
        kept, worst = ranked[: len(ranked) - replaced], ranked[len(ranked) - replaced :]
        copied = [trial for trial in ranked[:replaced] if not members[trial].closed]
        trains: list[Operation] = [
            TrainTo(trial, (rounds - members[trial].first_round + 1) * plan.length_per_round)
            for trial in kept
            if not members[trial].closed
        ]
        # `on_trial_created` appends the copies later.
        self._records.write_numbers(_MEMBERS, kept)
        state = PopulationState(
            members=len(kept) + len(copied),
            listed=len(kept),
            rounds=rounds,
            results=sum(members[trial].closed for trial in kept),
            copies=state.copies + len(copied),
        )
        if len(members) > _MEMBERS_AT_ONCE:
            return self._change_in_steps(state, members, worst, copied, trains)
        closes = self._close_trials(members, worst)
        return MethodStep(state, [*closes, *map(self._copy_of, copied), *trains])

    def _change_in_steps(
        self,
        state: PopulationState,
        members: Mapping[int, Member],
        closing: Sequence[int],
        copied: Sequence[int],
        operations: Sequence[Operation] = (),
    ) -> MethodStep[PopulationState]:
        """Write the list of trials that `close_more` closes and copies.

        Return the next state and `operations`, which do not wait for `close_more`.
        """
        closes = [trial for trial in closing if not members[trial].closed]
        self._records.write_numbers(_PENDING, [*closes, *copied])
        pending = len(closes) + len(copied)
        after = evolve(state, pending=pending, pending_closes=len(closes), changed=0)
        return MethodStep(after, operations, is_large=True)

    def _is_pending_close(self, state: PopulationState, trial: int) -> bool:
        """Return whether `close_more` will close the trial."""
        closes = self._records.read_numbers(_PENDING, state.pending_closes)
        return state.changed < state.pending_closes and trial in islice(closes, state.changed, None)

    def _copy_of(self, trial: int) -> Create:
        """Return the operation that creates a changed copy of a trial, from the trial's latest
        checkpoint.

        The operation only names the trial. The driver draws the new hyperparameters when the copy
        is created. The copy first trains one round, and stays open.
        """
        length = self._plan.length_per_round
        return Create(1, "Explored", first_point=trial, length=length, closed=False)

    def _close_trials(self, members: dict[int, Member], trials: Iterable[int]) -> list[Operation]:
        """Write that open trials are closed, and return a close for each of these trials."""
        closes: list[Operation] = []
        for trial in trials:
            if not members[trial].closed:
                self._records.write_member(trial, members[trial]._replace(closed=True))
                closes.append(Close(trial))
        return closes


def _rank_key(member: Member) -> tuple[float, bytes]:
    """Return a sort key that puts the best result first; request ids order equal results."""
    return (member.result, member.request_id)


def _make_plan(options: StepPbt | LengthPbt, rules: SearchRules) -> PopulationPlan:
    explore = options.explore_function
    match options:
        case StepPbt(steps_per_round=length) | LengthPbt(length_per_round=length):
            return PopulationPlan(
                length_per_round=length.count,
                population_size=options.population_size,
                num_rounds=options.num_rounds,
                truncate_fraction=options.replace_function.truncate_fraction,
                exploration=Exploration(explore.resample_probability, explore.perturb_factor),
                smaller_is_better=options.smaller_is_better,
                rules=rules,
                integers_move=explore.move_integers,
            )


def _find_problems(options: StepPbt | LengthPbt, rules: SearchRules) -> Iterator[Finding]:
    trials = _make_plan(options, rules).max_trials
    if trials > TRIALS_MAX:
        message = f"makes {shown_count(trials)} trials in all, at most {TRIALS_MAX} are allowed"
        yield Finding(("num_rounds",), message, "lower it, or replace fewer in a round")


def _preview(plan: PopulationPlan) -> list[PreviewPart]:
    replaces = plan.replaced_count > 0 and plan.num_rounds > 1
    return [PreviewPart(plan, depends_on_results=replaces, has_expectation=False)]


def _read_brackets(
    plan: PopulationPlan,
    state: PopulationState,
    blobs: BlobStore,
    trials: Sequence[SearchedTrial],
    shown_max: int,
) -> list[BracketProgress]:
    """Read the started rounds as the rungs of one bracket; see ReadBrackets.

    The length of a round is the training up to the end of that round, the original's training
    included. Records contain only a trial's latest result. The best metric of a round is therefore
    None if any trial of the round has a later result.
    """
    round_count = min(state.rounds + 1, plan.num_rounds)
    rounds = [_Round([], Counter()) for _ in range(round_count)]
    # Rounds with fewer entries than `shown_max`. Later promoted trials are only counted.
    open_rounds = list(range(round_count))
    # Changes, from round to round, of the number of trials that have a later result.
    later_results = [0] * (round_count + 1)
    members = PopulationRecords(blobs).read_members(len(trials))
    for number, (member, trial) in enumerate(zip(members, trials, strict=False)):
        if member.first_round >= round_count:
            # The record is newer than `state`.
            continue
        later_results[member.first_round] += 1
        later_results[min(max(member.result_round, member.first_round), round_count)] -= 1
        start = bisect_left(open_rounds, member.first_round)
        for index in open_rounds[start : bisect_left(open_rounds, member.result_round)]:
            rounds[index].trials.append(RungTrial(number, None, Outcome.PROMOTED))
            if len(rounds[index].trials) >= shown_max:
                open_rounds.remove(index)
        last = member.result_round if member.closed else state.rounds
        for index in range(
            max(member.result_round, member.first_round), min(last + 1, round_count)
        ):
            outcome = _outcome(member, index, state, plan).for_trial(is_open=trial.is_open)
            has_result = index == member.result_round and member.result != WORST_RESULT
            metric = signed_metric(member.result, plan.smaller_is_better) if has_result else None
            rounds[index].trials.append(RungTrial(number, metric, outcome))
            rounds[index].outcomes[outcome] += 1
    rungs: list[RungProgress] = []
    for index, ((entries, outcomes), promoted) in enumerate(
        zip(rounds, accumulate(later_results), strict=False)
    ):
        entries.sort(key=lambda entry: rank_key(entry, plan.smaller_is_better))
        best = entries[0].metric if entries and not promoted else None
        outcomes[Outcome.PROMOTED] += promoted
        length = (index + 1) * plan.length_per_round
        rungs.append(RungProgress(length, outcomes, best, tuple(entries[:shown_max])))
    return [BracketProgress(tuple(rungs))]


class _Round(NamedTuple):
    """The entries of a round while the records are read."""

    trials: list[RungTrial]
    outcomes: Counter[Outcome]
    """The number of trials with each outcome, except trials with a later result."""


def _outcome(member: Member, index: int, state: PopulationState, plan: PopulationPlan) -> Outcome:
    """Return the outcome of a member in round `index`, from the member's first round on."""
    if member.result_round > index:
        return Outcome.PROMOTED
    if member.closed and member.result == WORST_RESULT:
        return Outcome.EXITED
    if member.result_round < index:
        return Outcome.TRAINING
    if index == plan.num_rounds - 1 and state.rounds > index:
        return Outcome.FINISHED
    if member.closed:
        return Outcome.STOPPED
    return Outcome.WAITING if index == state.rounds else Outcome.PROMOTED


SPEC = SearcherSpec[StepPbt | LengthPbt, PopulationPlan](
    name="pbt",
    listing_order=9,
    step_options=StepPbt,
    length_options=LengthPbt,
    plan_type=PopulationPlan,
    state_type=PopulationState,
    make_plan=_make_plan,
    make_method=lambda plan, space, blobs: PopulationSearch(plan, blobs),
    trial_count=lambda options, plan, space: plan.max_trials,
    preview=_preview,
    read_brackets=_read_brackets,
    find_problems=_find_problems,
    # Each member trains once in each round.
    training_count=lambda options: options.population_size * options.num_rounds,
)
