"""Asynchronous halvings beside the same rules on plain lists, under the same legal events.

What the rules leave open is settled as follows, in both. A trial that exits while it waits for a
promotion keeps its result, since a rung holds each trial once; a trial that was closed is never
promoted, which only the removal of invalid results could ask for; where two rungs have one length
the result counts for both.
"""

from dataclasses import dataclass, field
from math import trunc
from sys import float_info

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control_plane.searchers.halving import HalvingPlan
from control_plane.searchers.method import ExitReason
from control_plane.searchers.rules import LENGTH_ERA, STEP_ERA
from control_plane.searchers.tournament import TournamentPlan
from tests.unit.searchers.driven import Asked, Driven

WORST = float_info.max
INVALID_MAX = 3

Entry = tuple[float, int]


class Oracle:
    """One bracket. Its rungs are sorted lists of (signed metric, trial)."""

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

    def begun(self) -> int:
        most, concurrent = self.plan.max_trials, self.plan.max_concurrent_trials
        if concurrent > 0:
            return min(concurrent, most)
        return max(min(trunc(self.plan.divisor ** (self.plan.num_rungs - 1)), most), 1)

    def created(self, trial: int) -> None:
        self.rung_of[trial] = 0
        self.outstanding[0] += 1

    def validated(self, trial: int, metric: float) -> Asked:
        signed = metric if self.plan.smaller_is_better else -metric
        return self._answer(trial, signed)

    def exits(self, trial: int, reason: ExitReason) -> Asked:
        self.completed += 1
        had_result = self._has_result(trial)
        self.exited.add(trial)
        self.closed.add(trial)
        if self.plan.rules is LENGTH_ERA and reason.invalid_hparams:
            self.outstanding[self.rung_of[trial]] -= not had_result
            self.rungs = [[entry for entry in rung if entry[1] != trial] for rung in self.rungs]
            self.invalid += 1
            return Asked(1, {}, frozenset())
        return Asked(0, {}, frozenset()) if had_result else self._answer(trial, WORST)

    def ended(self) -> Asked:
        self.completed += 1
        return Asked(0, {}, frozenset())

    def progress(self) -> float:
        results, most = len(self.rungs[0]), self.plan.max_trials
        share = results / (1.2 * most)
        return max(share, (self.completed - self.invalid) / most) if results == most else share

    def _has_result(self, trial: int) -> bool:
        return trial in [entry[1] for entry in self.rungs[self.rung_of[trial]]]

    def _answer(self, trial: int, metric: float) -> Asked:
        self.trains, self.closes = {}, set()
        self._result(trial, metric)
        counted = len(self.rung_of) - self.invalid
        creates = not self.trains and counted < self.plan.max_trials
        if not self.plan.stops and len(self.rungs[0]) == self.plan.max_trials:
            self._close_out()
        return Asked(int(creates), self.trains, frozenset(self.closes))

    def _result(self, trial: int, metric: float) -> None:
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
            self._goes_on(k, trial, metric)
        else:
            self._close(trial)

    def _promote_one(self, k: int, trial: int, metric: float) -> None:
        rung, divisor = self.rungs[k], self.plan.divisor
        old, new = trunc(len(rung) / divisor), trunc((len(rung) + 1) / divisor)
        index = sum(known <= metric for known, _ in rung)
        rung.insert(index, (metric, trial))
        if index < new:
            self._goes_on(k, trial, metric)
        elif new != old:
            older_metric, older = rung[old]
            is_over = older in self.closed and older not in self.exited
            if older not in self.promoted[k] and not is_over:
                self._goes_on(k, older, older_metric)

    def _goes_on(self, k: int, trial: int, metric: float) -> None:
        self.promoted[k].add(trial)
        self.rung_of[trial] = k + 1
        self.outstanding[k + 1] += 1
        if trial in self.exited:
            self._result(trial, WORST)
        elif self.need[k + 1] == self.need[k]:
            self._result(trial, metric)
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
    """A search and its oracles, one for each bracket; `owners` has the bracket of each trial."""

    real: Driven
    may_be_invalid: bool
    owners: list[Oracle] = field(default_factory=list)
    invalid: int = 0

    def __post_init__(self) -> None:
        plan = self.real.plan
        plans = plan.brackets if isinstance(plan, TournamentPlan) else (plan,)
        self.oracles = [Oracle(one) for one in plans if isinstance(one, HalvingPlan)]
        for oracle in self.oracles:
            self._own(oracle, oracle.begun())
        self.real.settled()
        assert len(self.real.trials) == len(self.owners)

    def advance(self, data: st.DataObject) -> None:
        """Lets one trial do a legal thing, and compares what is asked for."""
        real = self.real
        busy = [trial for trial, now in real.trials.items() if now.reached < now.length]
        over = [trial for trial, now in real.trials.items() if now.closed]
        assert busy or over, "trials wait for a word that never comes"
        exits = data.draw(st.integers(0, 7)) == 0
        trial = data.draw(st.sampled_from(sorted(real.trials) if exits else sorted(busy + over)))
        oracle = self.owners[trial]
        if exits:
            reason = self._reason(data)
            self._compare(oracle, real.exited(trial, reason), oracle.exits(trial, reason))
        elif trial in over and real.trials[trial].reached == real.trials[trial].length:
            self._compare(oracle, real.ended(trial), oracle.ended())
        else:
            metric = data.draw(st.sampled_from([0.0, 1.0, 2.0]) | st.floats(-9, 9))
            self._compare(oracle, real.result(trial, metric), oracle.validated(trial, metric))

    @property
    def is_stuck(self) -> bool:
        """Whether every open trial waits for a word."""
        trials = self.real.trials.values()
        return all(now.reached == now.length and not now.closed for now in trials)

    def settle(self) -> None:
        """By now everything was closed that is to be."""
        assert self.real.settled().trains == {}
        over = {trial for trial, now in self.real.trials.items() if now.closed}
        assert over == {t for t in self.real.trials if t in self.owners[t].closed}

    def _reason(self, data: st.DataObject) -> ExitReason:
        allowed = self.may_be_invalid and self.invalid < INVALID_MAX
        reasons = [reason for reason in ExitReason if allowed or not reason.invalid_hparams]
        reason = data.draw(st.sampled_from(reasons))
        self.invalid += reason.invalid_hparams
        return reason

    def _compare(self, oracle: Oracle, did: Asked, expected: Asked) -> None:
        self._own(oracle, expected.created)
        assert (did.created, did.trains) == (expected.created, expected.trains)
        if not self.real.waits:
            assert did.closes == expected.closes
        shares = [one.progress() for one in self.oracles]
        done = 1.0 if self.real.shutdowns else sum(shares) / len(shares)
        assert self.real.progress == pytest.approx(done, abs=1e-12)

    def _own(self, oracle: Oracle, count: int) -> None:
        for _ in range(count):
            oracle.created(len(self.owners))
            self.owners.append(oracle)


@st.composite
def plans(draw: st.DrawFn) -> HalvingPlan | TournamentPlan:
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
    return brackets[0] if alone else TournamentPlan(tuple(brackets))


@settings(deadline=None, derandomize=True, max_examples=300)
@given(plans(), st.data())
def test_a_halving_asks_for_what_the_rules_ask_for(
    plan: HalvingPlan | TournamentPlan, data: st.DataObject
) -> None:
    pair = Pair(Driven(plan), may_be_invalid=True)
    while not pair.real.shutdowns:
        pair.advance(data)
    assert not pair.real.trials


@settings(deadline=None, derandomize=True, max_examples=100)
@given(plans(), st.data())
def test_closings_that_wait_come_to_the_same(
    plan: HalvingPlan | TournamentPlan, data: st.DataObject
) -> None:
    pair = Pair(Driven(plan, expand_max=1, waits=True), may_be_invalid=False)
    while not pair.real.shutdowns:
        if data.draw(st.booleans()) or pair.is_stuck:
            pair.settle()
        pair.advance(data)
    assert not pair.real.trials
