"""Asynchronous halvings compared with the same rules on plain lists, under the same legal events.

Open points of the rules are decided equally in both. A trial that exits while waiting for a
promotion keeps its result, since a rung has each trial once. A closed trial is never promoted,
which only the removal of invalid results could request. Where two rungs have the same length, a
result counts for both.
"""

from dataclasses import dataclass, field
from math import trunc
from sys import float_info

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control_plane.searchers.era_rules import LENGTH_ERA, STEP_ERA
from control_plane.searchers.halving.asynchronous import HalvingPlan
from control_plane.searchers.halving.multi_bracket import MultiBracketPlan
from control_plane.searchers.method import ExitReason
from tests.unit.searchers.driven_search import Answer, DrivenSearch

WORST = float_info.max
INVALID_MAX = 3

Entry = tuple[float, int]


class Oracle:
    """A bracket with rungs as sorted lists of (signed metric, trial)."""

    def __init__(self, plan: HalvingPlan) -> None:
        self.plan = plan
        powers = [plan.divisor ** (plan.num_rungs - 1 - k) for k in range(plan.num_rungs)]
        self.need = [max(trunc(plan.max_length / power), 1) for power in powers]
        self.rungs: list[list[Entry]] = [[] for _ in powers]
        self.promoted: list[set[int]] = [set() for _ in powers]
        self.outstanding = [0 for _ in powers]
        self.rung_of: dict[int, int] = {}
        self.exited: set[int] = set()
        self.closed: set[int] = set()
        self.completed = self.invalid = 0
        self.trains: dict[int, int] = {}
        self.closes: set[int] = set()

    def first_trials(self) -> int:
        most, concurrent = self.plan.max_trials, self.plan.max_concurrent_trials
        if concurrent > 0:
            return min(concurrent, most)
        return max(min(trunc(self.plan.divisor ** (self.plan.num_rungs - 1)), most), 1)

    def add_trial(self, trial: int) -> None:
        self.rung_of[trial] = 0
        self.outstanding[0] += 1

    def answer_result(self, trial: int, metric: float) -> Answer:
        signed = metric if self.plan.smaller_is_better else -metric
        return self._answer_to(trial, signed)

    def answer_exit(self, trial: int, reason: ExitReason) -> Answer:
        self.completed += 1
        had_result = self._has_result(trial)
        self.exited.add(trial)
        self.closed.add(trial)
        if self.plan.rules is LENGTH_ERA and reason.is_invalid_hparams:
            self.outstanding[self.rung_of[trial]] -= not had_result
            self.rungs = [[entry for entry in rung if entry[1] != trial] for rung in self.rungs]
            self.invalid += 1
            return Answer(1, {}, frozenset())
        return Answer(0, {}, frozenset()) if had_result else self._answer_to(trial, WORST)

    def answer_end(self) -> Answer:
        self.completed += 1
        return Answer(0, {}, frozenset())

    def progress(self) -> float:
        results, most = len(self.rungs[0]), self.plan.max_trials
        share = results / (1.2 * most)
        return max(share, (self.completed - self.invalid) / most) if results == most else share

    def _has_result(self, trial: int) -> bool:
        return trial in [entry[1] for entry in self.rungs[self.rung_of[trial]]]

    def _answer_to(self, trial: int, metric: float) -> Answer:
        self.trains, self.closes = {}, set()
        self._record_result(trial, metric)
        counted = len(self.rung_of) - self.invalid
        creates = not self.trains and counted < self.plan.max_trials
        if not self.plan.stops and len(self.rungs[0]) == self.plan.max_trials:
            self._close_out()
        return Answer(int(creates), self.trains, frozenset(self.closes))

    def _record_result(self, trial: int, metric: float) -> None:
        k = self.rung_of[trial]
        self.outstanding[k] -= 1
        if k == self.plan.num_rungs - 1:
            self.rungs[k].append((metric, trial))
            self._close(trial)
        elif self.plan.stops:
            self._stop_or_go_on(k, trial, metric)
        else:
            self._promote_one(k, trial, metric)

    def _stop_or_go_on(self, k: int, trial: int, metric: float) -> None:
        rung = self.rungs[k]
        index = sum(known < metric for known, _ in rung)
        rung.insert(index, (metric, trial))
        if trial in self.exited:
            return
        if index < max(trunc(len(rung) / self.plan.divisor), 1):
            self._continue_trial(k, trial, metric)
        else:
            self._close(trial)

    def _promote_one(self, k: int, trial: int, metric: float) -> None:
        rung, divisor = self.rungs[k], self.plan.divisor
        old, new = trunc(len(rung) / divisor), trunc((len(rung) + 1) / divisor)
        index = sum(known <= metric for known, _ in rung)
        rung.insert(index, (metric, trial))
        if index < new:
            self._continue_trial(k, trial, metric)
        elif new != old:
            older_metric, older = rung[old]
            is_over = older in self.closed and older not in self.exited
            if older not in self.promoted[k] and not is_over:
                self._continue_trial(k, older, older_metric)

    def _continue_trial(self, k: int, trial: int, metric: float) -> None:
        self.promoted[k].add(trial)
        self.rung_of[trial] = k + 1
        self.outstanding[k + 1] += 1
        if trial in self.exited:
            self._record_result(trial, WORST)
        elif self.need[k + 1] == self.need[k]:
            self._record_result(trial, metric)
        else:
            self.trains[trial] = self.need[k + 1]

    def _close_out(self) -> None:
        for k, rung in enumerate(self.rungs):
            if self.outstanding[k]:
                return
            for _, trial in rung:
                if trial not in self.promoted[k]:
                    self._close(trial)

    def _close(self, trial: int) -> None:
        if trial not in self.closed:
            self.closed.add(trial)
            self.closes.add(trial)


@dataclass
class Pair:
    """A search and an oracle for each bracket; `owners` has the bracket of each trial."""

    real: DrivenSearch
    may_be_invalid: bool
    owners: list[Oracle] = field(default_factory=list)
    invalid: int = 0

    def __post_init__(self) -> None:
        plan = self.real.plan
        plans = plan.brackets if isinstance(plan, MultiBracketPlan) else (plan,)
        self.oracles = [Oracle(one) for one in plans if isinstance(one, HalvingPlan)]
        for oracle in self.oracles:
            self._assign_trials(oracle, oracle.first_trials())
        self.real.expand_all()
        assert len(self.real.trials) == len(self.owners)

    def advance(self, data: st.DataObject) -> None:
        """Let a trial do a legal step, and compare the operations."""
        real = self.real
        busy = [trial for trial, now in real.trials.items() if now.reached < now.length]
        over = [trial for trial, now in real.trials.items() if now.closed]
        assert busy or over, "all trials wait for the search"
        exits = data.draw(st.integers(0, 7)) == 0
        trial = data.draw(st.sampled_from(sorted(real.trials) if exits else sorted(busy + over)))
        oracle = self.owners[trial]
        if exits:
            reason = self._draw_reason(data)
            self._compare(oracle, real.exit_trial(trial, reason), oracle.answer_exit(trial, reason))
        elif trial in over and real.trials[trial].reached == real.trials[trial].length:
            self._compare(oracle, real.end_trial(trial), oracle.answer_end())
        else:
            metric = data.draw(st.sampled_from([0.0, 1.0, 2.0]) | st.floats(-9, 9))
            self._compare(
                oracle, real.report_result(trial, metric), oracle.answer_result(trial, metric)
            )

    @property
    def is_stuck(self) -> bool:
        """Return whether every open trial waits for an operation."""
        trials = self.real.trials.values()
        return all(now.reached == now.length and not now.closed for now in trials)

    def expand_all(self) -> None:
        """Let the search close all trials that are due."""
        assert self.real.expand_all().trains == {}
        over = {trial for trial, now in self.real.trials.items() if now.closed}
        assert over == {t for t in self.real.trials if t in self.owners[t].closed}

    def _draw_reason(self, data: st.DataObject) -> ExitReason:
        allowed = self.may_be_invalid and self.invalid < INVALID_MAX
        reasons = [reason for reason in ExitReason if allowed or not reason.is_invalid_hparams]
        reason = data.draw(st.sampled_from(reasons))
        self.invalid += reason.is_invalid_hparams
        return reason

    def _compare(self, oracle: Oracle, did: Answer, expected: Answer) -> None:
        self._assign_trials(oracle, expected.created)
        assert (did.created, did.trains) == (expected.created, expected.trains)
        if not self.real.waits:
            assert did.closes == expected.closes
        shares = [one.progress() for one in self.oracles]
        done = 1.0 if self.real.shutdowns else sum(shares) / len(shares)
        assert self.real.progress == pytest.approx(done, abs=1e-12)

    def _assign_trials(self, oracle: Oracle, count: int) -> None:
        for _ in range(count):
            oracle.add_trial(len(self.owners))
            self.owners.append(oracle)


@st.composite
def plans(draw: st.DrawFn) -> HalvingPlan | MultiBracketPlan:
    rules = draw(st.sampled_from([STEP_ERA, LENGTH_ERA]))
    halvings = st.builds(
        HalvingPlan,
        max_length=st.integers(1, 30),
        num_rungs=st.integers(1, 4),
        divisor=st.sampled_from([1.5, 2.0, 3.0, 4.0]),
        max_trials=st.integers(1, 14),
        max_concurrent_trials=st.integers(0, 5),
        smaller_is_better=st.booleans(),
        rules=st.just(rules),
        stops=st.booleans(),
    )
    brackets = draw(st.lists(halvings, min_size=1, max_size=3))
    alone = len(brackets) == 1 and draw(st.booleans())
    return brackets[0] if alone else MultiBracketPlan(tuple(brackets))


@settings(deadline=None, derandomize=True, max_examples=75)
@given(plans(), st.data())
def test_halving_follows_the_rules(
    plan: HalvingPlan | MultiBracketPlan, data: st.DataObject
) -> None:
    pair = Pair(DrivenSearch(plan), may_be_invalid=True)
    while not pair.real.shutdowns:
        pair.advance(data)
    assert not pair.real.trials


@settings(deadline=None, derandomize=True, max_examples=50)
@given(plans(), st.data())
def test_delayed_closings_give_the_same_result(
    plan: HalvingPlan | MultiBracketPlan, data: st.DataObject
) -> None:
    pair = Pair(DrivenSearch(plan, expand_max=1, waits=True), may_be_invalid=False)
    while not pair.real.shutdowns:
        if data.draw(st.booleans()) or pair.is_stuck:
            pair.expand_all()
        pair.advance(data)
    assert not pair.real.trials
