"""Tests of experiments in virtual time: durations, trained batches and invariants."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control_plane.actors.lengths import Lengths
from control_plane.actors.records import Status
from control_plane.actors.trial.state import TrialState
from control_plane.searchers.era_rules import LENGTH_ERA
from control_plane.searchers.exploration import Exploration
from control_plane.searchers.halving.asynchronous import HalvingPlan
from control_plane.searchers.methods.bayesian import BayesianPlan
from control_plane.searchers.methods.pbt import PopulationPlan
from control_plane.simulation.experiment import SimulationStuck, simulate_experiment
from control_plane.simulation.machines import ValidationSchedule, machine_slots
from control_plane.suggestions.in_memory import suggest_from_parts
from tests.conftest import require
from tests.unit.simulation.virtual import (
    ConstantCurve,
    CurvesByNumber,
    halving_plan,
    random_plan,
    submission,
)


def test_trials_share_the_slots() -> None:
    # 4 trials of 10 batches of 1 s on 2 slots: two rounds of 10 s.
    result = simulate_experiment(submission(random_plan(10, 4)), 2, CurvesByNumber())
    assert result.makespan_ms == 20_000
    assert result.experiment.status is Status.COMPLETED
    assert result.experiment.trials_completed == 4
    account = result.usage
    assert (account.batches, account.units, account.slot_ms) == (40, 40.0, 40_000)
    assert result.slot_utilization(2) == 1.0


def test_first_free_slot_takes_the_next_trial() -> None:
    # On 2 slots trials of 10, 30 and 15 s: the third begins at 10 s and ends at 25 s, the second
    # at 30 s. Busy: 10 + 30 + 15 of 2 * 30 s.
    result = simulate_experiment(
        submission(random_plan(10, 3)), 2, CurvesByNumber(batch_ms=(1000.0, 3000.0, 1500.0))
    )
    assert result.makespan_ms == 30_000
    assert result.slot_utilization(2) == 55 / 60


def test_trial_of_several_slots_waits_for_all_slots() -> None:
    # 3 trials of 2 slots on 5 slots: two trials at a time, and one unused slot. The trials use
    # 3 * 10 * 2 of 5 * 20 slot-seconds.
    result = simulate_experiment(submission(random_plan(10, 3), slots=2), 5, CurvesByNumber())
    assert result.makespan_ms == 20_000
    assert result.slot_utilization(5) == 60 / 100


def test_simulation_respects_max_slots() -> None:
    # 4 trials one after the other on one slot of 4.
    result = simulate_experiment(submission(random_plan(10, 4), max_slots=1), 4, CurvesByNumber())
    assert result.makespan_ms == 40_000


def test_halving_promotes_the_best_third_of_a_rung() -> None:
    # Trial i has metric i + 1. On one slot with one trial open: trials 0, 1 and 2 train 1 batch;
    # after three results trial 0 is promoted to 3. After trials 3, 4 and 5, a third of six is two:
    # trial 1 too. After 6, 7 and 8, a third of nine: trial 2 too. Of these, trial 0 trains to 9.
    # 9 trainings of 1 batch, 3 of 2 more and 1 of 6 more: 9 + 6 + 6 = 21 batches of 1 s.
    result = simulate_experiment(submission(halving_plan(9, 1)), 1, CurvesByNumber())
    assert result.usage.batches == 21
    assert result.makespan_ms == 21_000
    assert result.improvements == ((1_000, 1.0),)
    assert result.experiment.best_trial == 1


def test_promoted_trial_resumes_from_the_checkpoint() -> None:
    curves = CurvesByNumber()
    result = simulate_experiment(submission(halving_plan(3, 3)), 3, curves)
    # 3 trials of 1 batch; the first trial is promoted to 3 batches. A rung of one trial promotes
    # no trial, because a third of one rounds down to zero.
    assert result.usage.batches == 3 + 2
    assert curves.started == [0, 1, 2, 0]


def test_improvements_record_time_and_metric() -> None:
    # Trials run one after the other, and every trial is better than the previous trial.
    class Falling(CurvesByNumber):
        def curve_for(self, trial: TrialState) -> ConstantCurve:
            return ConstantCurve(-float(trial.number), 1000.0)

    result = simulate_experiment(submission(random_plan(2, 3)), 1, Falling())
    assert result.improvements == ((2_000, 0.0), (4_000, -1.0), (6_000, -2.0))


def test_missing_metric_ranks_last() -> None:
    class BrokenCurves(CurvesByNumber):
        def curve_for(self, trial: TrialState) -> ConstantCurve:
            return ConstantCurve(None if trial.number == 0 else 1.0, 1000.0)

    result = simulate_experiment(submission(halving_plan(3, 3)), 1, BrokenCurves())
    assert result.experiment.status is Status.COMPLETED
    # The trial without a metric ran first, and a different trial is promoted.
    assert result.usage.batches == 5


def test_validations_follow_the_period() -> None:
    validated: list[int] = []

    class WatchedCurve(ConstantCurve):
        def metric(self, batches: int) -> float | None:
            validated.append(batches)
            return 1.0

    class Watching(CurvesByNumber):
        def curve_for(self, trial: TrialState) -> ConstantCurve:
            return WatchedCurve(1.0, 1000.0)

    result = simulate_experiment(
        submission(random_plan(10, 1)),
        1,
        Watching(),
        validation_schedule=ValidationSchedule(lambda trial: 4),
    )
    assert validated == [4, 8, 10]
    assert result.makespan_ms == 10_000


def test_times_below_a_millisecond_add_up() -> None:
    # 100 validations, a batch of 0.3 ms before each: 30 ms.
    result = simulate_experiment(
        submission(random_plan(100, 1)),
        1,
        CurvesByNumber((0.3,)),
        validation_schedule=ValidationSchedule(lambda trial: 1),
    )
    assert result.makespan_ms == 30


def test_usage_counts_units_of_the_configuration() -> None:
    # 2 trials of 3 epochs of 320 records in batches of 1: 960 batches each.
    lengths = Lengths("epochs", records_per_epoch=320)
    result = simulate_experiment(
        submission(random_plan(3, 2), lengths=lengths), 2, CurvesByNumber((1.0,))
    )
    assert (result.usage.batches, result.usage.units) == (1920, 6.0)
    assert result.makespan_ms == 960


def test_batches_beyond_the_records_are_counted() -> None:
    # The records cover 4 of the 10 batches of a trial: 6 batches per trial are beyond.
    result = simulate_experiment(submission(random_plan(10, 2)), 1, CurvesByNumber(known_batches=4))
    assert result.usage.extrapolated_batches == 12
    # In a halving, trial 0 trains 1 + 2 + 6 = 9 batches: the 5 after the fourth are beyond.
    result = simulate_experiment(submission(halving_plan(9, 1)), 1, CurvesByNumber(known_batches=4))
    assert result.usage.extrapolated_batches == 5


def test_trials_measured_by_time_train_until_stopped() -> None:
    # Rungs at 2 and 4 of a clock that counts half batches; the metric of trial i is i + 1.
    plan = HalvingPlan(4, 2, 2.0, 3, 1, True, LENGTH_ERA, stops=True, by_time=True)
    pace = ValidationSchedule(lambda trial: 2, lambda trial, batches: batches / 2)
    message = replace(submission(plan), time_metric="half")
    result = simulate_experiment(message, 1, CurvesByNumber(), validation_schedule=pace)
    # Trial 0 leads both rungs: 8 batches. Trials 1 and 2 stop at the first rung, after 4 batches.
    assert result.usage.batches == 16
    assert result.makespan_ms == 16_000
    assert result.experiment.trials_completed == 3


def test_population_copies_continue_the_curves_of_the_originals() -> None:
    validated: list[int] = []

    class WatchedCurve(ConstantCurve):
        def metric(self, batches: int) -> float | None:
            validated.append(batches)
            return self.value

    class Watching(CurvesByNumber):
        def curve_for(self, trial: TrialState) -> ConstantCurve:
            return WatchedCurve(float(trial.number), 1000.0)

    exploration = Exploration(resample_probability=0.0, perturb_factor=0.2)
    plan = PopulationPlan(5, 2, 2, 0.5, exploration, smaller_is_better=True, rules=LENGTH_ERA)
    result = simulate_experiment(submission(plan), 2, Watching())
    # Two trials validate at 5; then trial 0 and its copy, which starts from 5 batches, at 10.
    assert sorted(validated) == [5, 5, 10, 10]
    assert result.usage.batches == 20
    assert result.makespan_ms == 10_000


def test_suggestions_take_no_virtual_time() -> None:
    require("optuna")
    plan = BayesianPlan(10, 12, 2, startup_trials=3, rules=LENGTH_ERA)
    result = simulate_experiment(submission(plan), 2, CurvesByNumber(), suggest=suggest_from_parts)
    # Twelve trials of 10 s on two slots, and no trial waited for a suggestion.
    assert result.makespan_ms == 60_000
    assert result.experiment.trials_completed == 12


def test_pool_without_room_for_a_trial_raises_simulation_stuck() -> None:
    with pytest.raises(SimulationStuck, match=r"after 0 s no event is due.*needs 3 slots: agents"):
        simulate_experiment(submission(random_plan(10, 2), slots=3), 2, CurvesByNumber())


def test_paused_experiment_raises_simulation_stuck() -> None:
    paused = replace(submission(random_plan(10, 2)), paused=True)
    with pytest.raises(SimulationStuck, match="2 of 2 trials open"):
        simulate_experiment(paused, 2, CurvesByNumber())


@pytest.mark.parametrize(
    ("slots", "per_trial", "machines"),
    [
        (20, 1, [8, 8, 4]),
        (3, 1, [3]),
        # Two trials of 3 slots fit into 8: machines of 6.
        (14, 3, [6, 6, 2]),
        (32, 16, [16, 16]),
        (8, 0, [8]),
    ],
)
def test_machines_hold_whole_trials(slots: int, per_trial: int, machines: list[int]) -> None:
    assert machine_slots(slots, per_trial) == machines


def test_equal_submissions_give_equal_simulations() -> None:
    first, again = (
        simulate_experiment(
            submission(halving_plan(30, 4), seed=3), 4, CurvesByNumber((900.0, 1100.0))
        )
        for _ in range(2)
    )
    assert first == again


@settings(max_examples=60, deadline=None)
@given(
    trials=st.integers(1, 24),
    concurrent=st.integers(0, 8),
    slots=st.integers(1, 20),
    per_trial=st.integers(1, 3),
    speeds=st.lists(st.integers(1, 5_000), min_size=1, max_size=6),
    kind=st.sampled_from(["random", "promoting", "stopping"]),
)
def test_every_trial_ends_and_no_slot_is_used_twice(
    trials: int, concurrent: int, slots: int, per_trial: int, speeds: list[int], kind: str
) -> None:
    slots = max(slots, per_trial)
    plan = (
        random_plan(9, trials, concurrent)
        if kind == "random"
        else halving_plan(trials, concurrent, stops=kind == "stopping")
    )
    curves = CurvesByNumber(tuple(map(float, speeds)))
    result = simulate_experiment(submission(plan, slots=per_trial), slots, curves)
    assert result.experiment.status is Status.COMPLETED
    assert result.experiment.trials_completed == result.experiment.trials == trials
    # The trials use at most the available slot time.
    assert result.usage.slot_ms <= slots * result.makespan_ms
    assert result.makespan_ms >= result.usage.slot_ms / slots
    slowest_ms, fastest_ms = max(speeds), min(speeds)
    assert fastest_ms * result.usage.batches * per_trial <= result.usage.slot_ms
    assert result.usage.slot_ms <= slowest_ms * result.usage.batches * per_trial
    assert trials <= result.usage.batches <= 9 * trials
