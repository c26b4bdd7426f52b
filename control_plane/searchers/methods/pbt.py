"""Population-based training: after every round the worst trials are replaced by copies of the best
ones, with hyperparameters near theirs, and the others train on.

Source: Jaderberg et al., "Population Based Training of Neural Networks" (2017), with truncation
selection; the rules are those of Determined 0.12. A round ends when every member has its result.

A trial's record has 33 bytes, in blobs of 30 trials; the members of the round are 4 bytes each, in
blobs of 250. The hyperparameters of a trial are a blob of their own.
"""

import struct
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
from control_plane.searchers.spec import PreviewPart, SearcherSpec
from control_plane.searchers.stored_points import Point, store_point

# Round of birth, round of the result, result, whether it is gone; the request id.
_MEMBER = struct.Struct("<iid?16s")
_MEMBERS_PER_BLOB = 30
_NUMBER = struct.Struct("<I")
# Lists of trials' numbers: the members, and those that are to be closed and copied.
_MEMBERS, _PENDING = "members", "pending"
_NUMBERS_PER_BLOB = 250
# What the end of a round changes fits into one commit up to so many members; with more it is spread
# over several.
_MEMBERS_AT_ONCE = 1_000


POPULATION_MAX: Final = 10_000


class Truncation(OptionGroup):
    """Which share of a population is replaced by copies of as many best ones."""

    truncate_fraction: Annotated[float, Ge(0), Le(0.5)]
    """Share of the population that is replaced after a round."""


class ExplorationOptions(OptionGroup):
    """How the hyperparameters of a copy are changed."""

    resample_probability: Fraction
    """Chance that a hyperparameter is drawn again."""
    perturb_factor: Fraction
    """By which share the others are raised or lowered."""


class PopulationOptions(SearcherOptions):
    """A population whose worst are replaced by altered copies of its best, round by round."""

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
    """Population-based training."""

    steps_per_round: Steps
    """The number of steps that each trial trains in a round."""


class LengthPbt(PopulationOptions):
    """Population-based training."""

    length_per_round: Measured
    """How long each trial trains in a round."""


@dataclass(frozen=True, slots=True)
class PopulationPlan:
    """`population_size` trials train `length_per_round` in each of `num_rounds` rounds; the share
    `truncate_fraction` of them, at most a half, is replaced after each round but the last.
    """

    length_per_round: int
    population_size: int
    num_rounds: int
    truncate_fraction: float
    exploration: Exploration
    smaller_is_better: bool
    rules: SearchRules
    kind: Literal["pbt"] = "pbt"

    @property
    def max_length(self) -> int:
        """How long a trial trains at most."""
        return self.length_per_round * self.num_rounds

    @property
    def replaced_count(self) -> int:
        """How many trials a round replaces."""
        return int(self.truncate_fraction * self.population_size)

    @property
    def max_trials(self) -> int:
        """How many trials there are in the end, unless some fail."""
        return self.population_size + self.replaced_count * (self.num_rounds - 1)


@dataclass(frozen=True)
class PopulationState(MethodState):
    """Progress of the search: `rounds` are over, `members` are in this one, of whom `listed` were
    created and `results` have their result; `copies` were asked for in all.

    After a round of many members there are `pending` trials to close, the first `pending_closes` of
    them, and to copy, the others; the first `changed` of them are done.
    """

    members: int
    listed: int = 0
    rounds: int = 0
    results: int = 0
    copies: int = 0
    kind: Literal["pbt"] = "pbt"
    pending: int = 0
    pending_closes: int = 0
    changed: int = 0

    @property
    def is_closing(self) -> bool:
        """Whether trials are still to be closed or copied after the last round."""
        return self.changed < self.pending


class Member(NamedTuple):
    """A trial: the round it began in, the last round that it has a result in, -1 for none, and that
    result; `gone`: it failed, or was closed.
    """

    born: int
    measured: int = -1
    result: float = WORST_RESULT
    gone: bool = False
    request_id: bytes = bytes(16)


class PopulationSearch(SearchMethod[PopulationState]):
    """Waits for the results of a round and then decides about all members at once."""

    def __init__(self, plan: PopulationPlan, blobs: BlobStore) -> None:
        self._plan = plan
        self._blobs = blobs

    def first_step(self) -> MethodStep[PopulationState]:
        """Create the population."""
        size, length = self._plan.population_size, self._plan.length_per_round
        create = Create(size, "Sampled", first_point=0, length=length, closed=False)
        return MethodStep(PopulationState(size), (create,))

    def on_trial_created(self, state: PopulationState, created: CreateTrial) -> PopulationState:
        """Add the trial to the members of the round."""
        request_id = UUID(created.request_id).bytes
        self._write_member(created.trial, Member(state.rounds, request_id=request_id))
        store_point(self._blobs, created.trial, Point(created.hparams))
        name = f"{_MEMBERS}/{state.listed // _NUMBERS_PER_BLOB}"
        place = state.listed % _NUMBERS_PER_BLOB * _NUMBER.size
        before = (self._blobs.read(name) or b"")[:place]
        self._blobs.write(name, before + _NUMBER.pack(created.trial))
        return evolve(state, listed=state.listed + 1)

    def on_event(self, state: PopulationState, event: Event) -> MethodStep[PopulationState]:
        """Answer a result or an end, with a round's decisions where it was the last one missing."""
        match event:
            case TrialLengthReached():
                member = self._read_member(event.trial)
                length = (state.rounds - member.born + 1) * self._plan.length_per_round
                if member.gone or member.measured == state.rounds or event.length != length:
                    return MethodStep(state)
                result = signed_metric(event.metric, self._plan.smaller_is_better)
                measured = member._replace(measured=state.rounds, result=result)
                return self._add_result(state, event.trial, measured)
            case TrialClosed() | TrialExitedEarly():
                member = self._read_member(event.trial)
                if member.gone:
                    return MethodStep(state)
                if self._is_pending_close(state, event.trial):
                    self._write_member(event.trial, member._replace(gone=True))
                    return MethodStep(state)
                gone = member._replace(gone=True, measured=state.rounds, result=WORST_RESULT)
                if member.measured < state.rounds:
                    return self._add_result(state, event.trial, gone)
                self._write_member(event.trial, gone)
                return MethodStep(state)
            case _:
                return MethodStep(state)

    def close_more(
        self, state: PopulationState, trials: int, close_max: int
    ) -> MethodStep[PopulationState]:
        """Close or copy the next members that a round of many replaces, in their order."""
        pending = list(self._read_numbers(_PENDING, state.pending))
        end = min(state.changed + close_max, state.pending)
        operations: list[Operation] = []
        for place in range(state.changed, end):
            trial = pending[place]
            if place >= state.pending_closes:
                operations.append(self._copy_of(trial))
                continue
            member = self._read_member(trial)
            if not member.gone:
                self._write_member(trial, member._replace(gone=True))
                operations.append(Close(trial))
        if end < state.pending:
            return MethodStep(evolve(state, changed=end), operations)
        return MethodStep(evolve(state, pending=0, pending_closes=0, changed=0), operations)

    def read_members(self, count: int) -> Iterator[Member]:
        """Read the records of the first `count` trials, or of all if there are fewer."""
        for number in range(-(-count // _MEMBERS_PER_BLOB)):
            blob = self._blobs.read(f"trials/{number}") or b""
            for values in islice(_MEMBER.iter_unpack(blob), count - number * _MEMBERS_PER_BLOB):
                yield Member(*values)

    def progress(self, state: PopulationState, tally: Tally) -> float:
        """Compute the share of the training of all rounds; in the step era also of the validations
        and of the checkpoints that copies take.
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
        self._write_member(trial, member)
        state = evolve(state, results=state.results + 1)
        return MethodStep(state) if state.results < state.members else self._end_round(state)

    def _end_round(self, state: PopulationState) -> MethodStep[PopulationState]:
        """Replace the worst members by copies of the best and let the others train on."""
        plan, rounds = self._plan, state.rounds + 1
        members = {
            trial: self._read_member(trial) for trial in self._read_numbers(_MEMBERS, state.listed)
        }
        is_last = rounds >= plan.num_rounds
        if len(members) > _MEMBERS_AT_ONCE and is_last:
            ended = evolve(state, rounds=rounds, results=0)
            return self._change_in_steps(ended, members, closing=[*members], copied=[])
        if is_last:
            closed = self._close_trials(members, members)
            return MethodStep(evolve(state, rounds=rounds, results=0), closed)
        ranked = sorted(members, key=lambda trial: _rank_key(members[trial]))
        # Where failures have made the population small, no trial is both copied and replaced.
        replaced = min(plan.replaced_count, len(ranked) // 2)
        going_on, worst = ranked[: len(ranked) - replaced], ranked[len(ranked) - replaced :]
        copied = [trial for trial in ranked[:replaced] if not members[trial].gone]
        trains: list[Operation] = [
            TrainTo(trial, (rounds - members[trial].born + 1) * plan.length_per_round)
            for trial in going_on
            if not members[trial].gone
        ]
        # The copies follow as they are created.
        self._write_numbers(_MEMBERS, going_on)
        state = PopulationState(
            members=len(going_on) + len(copied),
            listed=len(going_on),
            rounds=rounds,
            results=sum(members[trial].gone for trial in going_on),
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
        """Note which trials `close_more` is to close and to copy, and ask for `operations` now."""
        closes = [trial for trial in closing if not members[trial].gone]
        self._write_numbers(_PENDING, [*closes, *copied])
        pending = len(closes) + len(copied)
        after = evolve(state, pending=pending, pending_closes=len(closes), changed=0)
        return MethodStep(after, operations, is_large=True)

    def _is_pending_close(self, state: PopulationState, trial: int) -> bool:
        """Whether the trial is one that `close_more` has still to close."""
        closes = islice(self._read_numbers(_PENDING, state.pending_closes), state.changed, None)
        return state.changed < state.pending_closes and trial in closes

    def _copy_of(self, trial: int) -> Create:
        length = self._plan.length_per_round
        return Create(1, "Explored", first_point=trial, length=length, closed=False)

    def _close_trials(self, members: dict[int, Member], trials: Iterable[int]) -> list[Operation]:
        """Close the trials that did not end by themselves, in their order."""
        closed: list[Operation] = []
        for trial in trials:
            if not members[trial].gone:
                self._write_member(trial, members[trial]._replace(gone=True))
                closed.append(Close(trial))
        return closed

    def _read_member(self, trial: int) -> Member:
        number, place = divmod(trial, _MEMBERS_PER_BLOB)
        blob = self._blobs.read(f"trials/{number}") or b""
        born, measured, result, gone, request_id = _MEMBER.unpack_from(blob, place * _MEMBER.size)
        return Member(born, measured, result, gone, request_id)

    def _write_member(self, trial: int, member: Member) -> None:
        number, place = divmod(trial, _MEMBERS_PER_BLOB)
        blob = bytearray(self._blobs.read(f"trials/{number}") or b"")
        start = place * _MEMBER.size
        packed = _MEMBER.pack(
            member.born, member.measured, member.result, member.gone, member.request_id
        )
        blob[start : start + _MEMBER.size] = packed
        self._blobs.write(f"trials/{number}", bytes(blob))

    def _read_numbers(self, name: str, count: int) -> Iterator[int]:
        for start in range(0, count, _NUMBERS_PER_BLOB):
            blob = self._blobs.read(f"{name}/{start // _NUMBERS_PER_BLOB}") or b""
            some = _NUMBER.iter_unpack(blob[: (count - start) * _NUMBER.size])
            yield from (trial for (trial,) in some)

    def _write_numbers(self, name: str, trials: Sequence[int]) -> None:
        for start in range(0, len(trials), _NUMBERS_PER_BLOB):
            packed = map(_NUMBER.pack, trials[start : start + _NUMBERS_PER_BLOB])
            self._blobs.write(f"{name}/{start // _NUMBERS_PER_BLOB}", b"".join(packed))


def _rank_key(member: Member) -> tuple[float, bytes]:
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
    """Read the rounds that have begun as the rungs of one bracket; see ReadBrackets. The length of
    a round is what its trials have trained with their originals.

    The result of a trial is that of its last round alone: the best metric of a round is known where
    those that went on have no later one yet.
    """
    begun = min(state.rounds + 1, plan.num_rounds)
    rounds = [_Round([], Counter()) for _ in range(begun)]
    # Rounds in which more of those that went on are to be shown: all others are only counted.
    roomy = list(range(begun))
    went_on = [0] * (begun + 1)
    members = PopulationSearch(plan, blobs).read_members(len(trials))
    for number, (member, trial) in enumerate(zip(members, trials, strict=False)):
        if member.born >= begun:
            # Created by an end of a round that the state does not have yet.
            continue
        went_on[member.born] += 1
        went_on[min(max(member.measured, member.born), begun)] -= 1
        for place in roomy[bisect_left(roomy, member.born) : bisect_left(roomy, member.measured)]:
            rounds[place].trials.append(RungTrial(number, None, Outcome.PROMOTED))
            if len(rounds[place].trials) >= shown_max:
                roomy.remove(place)
        last = member.measured if member.gone else state.rounds
        for place in range(max(member.measured, member.born), min(last + 1, begun)):
            outcome = _outcome(member, place, state, plan).for_trial(is_open=trial.is_open)
            has_result = place == member.measured and member.result != WORST_RESULT
            metric = signed_metric(member.result, plan.smaller_is_better) if has_result else None
            rounds[place].trials.append(RungTrial(number, metric, outcome))
            rounds[place].outcomes[outcome] += 1
    rungs: list[RungProgress] = []
    for place, ((own, outcomes), earlier) in enumerate(
        zip(rounds, accumulate(went_on), strict=False)
    ):
        own.sort(key=lambda one: rank_key(one, plan.smaller_is_better))
        best = own[0].metric if own and not earlier else None
        outcomes[Outcome.PROMOTED] += earlier
        length = (place + 1) * plan.length_per_round
        rungs.append(RungProgress(length, outcomes, best, tuple(own[:shown_max])))
    return [BracketProgress(tuple(rungs))]


class _Round(NamedTuple):
    """The trials of a round, and how many had which outcome but those with a later result."""

    trials: list[RungTrial]
    outcomes: Counter[Outcome]


def _outcome(member: Member, place: int, state: PopulationState, plan: PopulationPlan) -> Outcome:
    """Return what became of a member in a round that it took part in."""
    if member.measured > place:
        return Outcome.PROMOTED
    if member.gone and member.result == WORST_RESULT:
        return Outcome.EXITED
    if member.measured < place:
        return Outcome.TRAINING
    if place == plan.num_rounds - 1 and state.rounds > place:
        return Outcome.FINISHED
    if member.gone:
        return Outcome.STOPPED
    return Outcome.WAITING if place == state.rounds else Outcome.PROMOTED


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
    # In each round every member trains one length.
    training_count=lambda options: options.population_size * options.num_rounds,
)
