"""Population-based training: after every round the worst trials are replaced by copies of the best
ones, with hyperparameters near theirs, and the others train on.

Source: Jaderberg et al., "Population Based Training of Neural Networks" (2017), with truncation
selection; the rules are those of Determined 0.12. A round ends when every member has its result.

What is known of each trial is 33 bytes, in parts of 30 trials; the members of the round are 4 bytes
each, in parts of 250. The hyperparameters of a trial are a part of their own.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple
from uuid import UUID

from control_plane.evolve import evolve
from control_plane.searchers.exploration import Exploration
from control_plane.searchers.kept import Point, keep
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
    TrialExited,
    TrialReached,
)
from control_plane.searchers.parts import Parts
from control_plane.searchers.rules import Rules
from control_plane.searchers.rungs import WORST, signed

# Born, round of the result, result, whether it has left; the request id.
_MEMBER = struct.Struct("<iid?16s")
_MEMBERS_PER_PART = 30
_NUMBER = struct.Struct("<I")
_NUMBERS_PER_PART = 250


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
    rules: Rules
    kind: Literal["pbt"] = "pbt"

    @property
    def max_length(self) -> int:
        """How long a trial trains at most."""
        return self.length_per_round * self.num_rounds

    @property
    def truncated(self) -> int:
        """How many trials a round replaces."""
        return int(self.truncate_fraction * self.population_size)

    @property
    def max_trials(self) -> int:
        """How many trials there are in the end, unless some fail."""
        return self.population_size + self.truncated * (self.num_rounds - 1)


@dataclass(frozen=True)
class PopulationState(MethodState):
    """`rounds` are over, `members` are in this one, of whom `listed` were created and `results` are
    in; `copies` were asked for in all.
    """

    members: int
    listed: int = 0
    rounds: int = 0
    results: int = 0
    copies: int = 0
    kind: Literal["pbt"] = "pbt"


class Member(NamedTuple):
    """A trial: the round it began in, the last round that it has a result in, -1 for none, and that
    result; `gone`: it failed, or was closed.
    """

    born: int
    measured: int = -1
    result: float = WORST
    gone: bool = False
    request_id: bytes = bytes(16)


class Population(SearchMethod[PopulationState]):
    """Waits for the results of a round and then decides about all members at once."""

    def __init__(self, plan: PopulationPlan, parts: Parts) -> None:
        self._plan = plan
        self._parts = parts

    def initial(self) -> MethodStep[PopulationState]:
        """Create the population."""
        size, length = self._plan.population_size, self._plan.length_per_round
        create = Create(size, "Sampled", first_point=0, length=length, closed=False)
        return MethodStep(PopulationState(size), (create,))

    def on_created(self, state: PopulationState, created: CreateTrial) -> PopulationState:
        """A member: its number among the members is that of its creation, at first."""
        request_id = UUID(created.request_id).bytes
        self._put(created.trial, Member(state.rounds, request_id=request_id))
        keep(self._parts, created.trial, Point(created.hparams))
        name = f"members/{state.listed // _NUMBERS_PER_PART}"
        place = state.listed % _NUMBERS_PER_PART * _NUMBER.size
        before = (self._parts.read(name) or b"")[:place]
        self._parts.write(name, before + _NUMBER.pack(created.trial))
        return evolve(state, listed=state.listed + 1)

    def on_event(self, state: PopulationState, event: Event) -> MethodStep[PopulationState]:
        """Answer a result or an end, with a round's decisions where it was the last one missing."""
        match event:
            case TrialReached():
                member = self._member(event.trial)
                length = (state.rounds - member.born + 1) * self._plan.length_per_round
                if member.gone or member.measured == state.rounds or event.length != length:
                    return MethodStep(state)
                result = signed(event.metric, self._plan.smaller_is_better)
                measured = member._replace(measured=state.rounds, result=result)
                return self._came_in(state, event.trial, measured)
            case TrialClosed() | TrialExited():
                member = self._member(event.trial)
                if member.gone:
                    return MethodStep(state)
                gone = member._replace(gone=True, measured=state.rounds, result=WORST)
                if member.measured < state.rounds:
                    return self._came_in(state, event.trial, gone)
                self._put(event.trial, gone)
                return MethodStep(state)
            case _:
                return MethodStep(state)

    def progress(self, state: PopulationState, tally: Tally) -> float:
        """Compute the share of the training of all rounds; in the step era also of the validations
        and of the checkpoints that copies take.
        """
        plan = self._plan
        training = plan.num_rounds * plan.population_size * plan.length_per_round
        if not plan.rules.progress_in_workloads:
            return tally.units / training
        validations = plan.num_rounds * plan.population_size
        checkpoints = (plan.num_rounds - 1) * plan.truncated
        done = tally.units + tally.reached + state.copies
        return done / (training + validations + checkpoints)

    def _came_in(
        self, state: PopulationState, trial: int, member: Member
    ) -> MethodStep[PopulationState]:
        self._put(trial, member)
        state = evolve(state, results=state.results + 1)
        return MethodStep(state) if state.results < state.members else self._decided(state)

    def _decided(self, state: PopulationState) -> MethodStep[PopulationState]:
        """Replace the worst members by copies of the best and let the others train on."""
        plan, rounds = self._plan, state.rounds + 1
        members = {trial: self._member(trial) for trial in self._listed(state.listed)}
        if rounds >= plan.num_rounds:
            closed = self._closed(members, members)
            return MethodStep(evolve(state, rounds=rounds, results=0), closed)
        ranked = sorted(members, key=lambda trial: _rank(members[trial]))
        # Where failures have made it a small population, nobody is among both.
        truncated = min(plan.truncated, len(ranked) // 2)
        going_on, worst = ranked[: len(ranked) - truncated], ranked[len(ranked) - truncated :]
        copied = [trial for trial in ranked[:truncated] if not members[trial].gone]
        operations: list[Operation] = self._closed(members, worst)
        operations += [
            Create(1, "Explored", first_point=trial, length=plan.length_per_round, closed=False)
            for trial in copied
        ]
        for trial in going_on:
            member = members[trial]
            if not member.gone:
                length = (rounds - member.born + 1) * plan.length_per_round
                operations.append(TrainTo(trial, length))
        # The copies follow as they are created.
        self._list(going_on)
        state = PopulationState(
            members=len(going_on) + len(copied),
            listed=len(going_on),
            rounds=rounds,
            results=sum(members[trial].gone for trial in going_on),
            copies=state.copies + len(copied),
        )
        return MethodStep(state, operations)

    def _closed(self, members: dict[int, Member], trials: Iterable[int]) -> list[Operation]:
        """Those that did not end by themselves are closed; the best of them first."""
        closed: list[Operation] = []
        for trial in trials:
            if not members[trial].gone:
                self._put(trial, members[trial]._replace(gone=True))
                closed.append(Close(trial))
        return closed

    def _member(self, trial: int) -> Member:
        part, place = divmod(trial, _MEMBERS_PER_PART)
        piece = self._parts.read(f"trials/{part}") or b""
        born, measured, result, gone, request_id = _MEMBER.unpack_from(piece, place * _MEMBER.size)
        return Member(born, measured, result, gone, request_id)

    def _put(self, trial: int, member: Member) -> None:
        part, place = divmod(trial, _MEMBERS_PER_PART)
        piece = bytearray(self._parts.read(f"trials/{part}") or b"")
        start = place * _MEMBER.size
        packed = _MEMBER.pack(
            member.born, member.measured, member.result, member.gone, member.request_id
        )
        piece[start : start + _MEMBER.size] = packed
        self._parts.write(f"trials/{part}", bytes(piece))

    def _listed(self, count: int) -> Iterator[int]:
        for start in range(0, count, _NUMBERS_PER_PART):
            piece = self._parts.read(f"members/{start // _NUMBERS_PER_PART}") or b""
            some = _NUMBER.iter_unpack(piece[: (count - start) * _NUMBER.size])
            yield from (trial for (trial,) in some)

    def _list(self, trials: Sequence[int]) -> None:
        for start in range(0, len(trials), _NUMBERS_PER_PART):
            packed = map(_NUMBER.pack, trials[start : start + _NUMBERS_PER_PART])
            self._parts.write(f"members/{start // _NUMBERS_PER_PART}", b"".join(packed))


def _rank(member: Member) -> tuple[float, bytes]:
    return (member.result, member.request_id)
