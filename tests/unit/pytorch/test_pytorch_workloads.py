from dataclasses import replace
from itertools import product

import pytest

from detcloud.pytorch.workloads import (
    ERAS,
    Position,
    Schedule,
    policy_wants_checkpoint,
)
from tests.unit.pytorch.schedule_run import ScheduleRun

SCHEDULE = Schedule(
    scheduling_unit=4,
    validation_period=0,
    checkpoint_period=0,
    policy="none",
    smaller_is_better=True,
)


def schedule(era: str, unit: int, periods: tuple[int, int], policy: str = "none") -> Schedule:
    """Return a schedule; `periods` are the periods of validations and of checkpoints."""
    return replace(
        SCHEDULE,
        rules=ERAS[era],
        scheduling_unit=unit,
        validation_period=periods[0],
        checkpoint_period=periods[1],
        policy=policy,
    )


# Steps of 4 batches.
@pytest.mark.parametrize(
    ("periods", "lengths", "expected"),
    [
        ((0, 0), [12], "T4 T8 T12 V12 C12 D12"),
        ((8, 0), [12], "T4 T8 V8 T12 V12 C12 D12"),
        ((0, 8), [12], "T4 T8 C8 T12 V12 C12 D12"),
        ((4, 8), [12], "T4 V4 T8 V8 C8 T12 V12 C12 D12"),
        ((4, 4), [8], "T4 V4 C4 T8 V8 C8 D8"),
        # The searcher's validation at 8 counts: the next validation is due at 8 + 12.
        ((12, 0), [8, 20], "T4 T8 V8 C8 D8 T12 T16 T20 V20 C20 D20"),
        # The searcher's checkpoint at 4 counts, too: 8 - 4 < 8, 12 - 4 = 8.
        ((0, 8), [4, 16], "T4 V4 C4 D4 T8 T12 C12 T16 V16 C16 D16"),
        # A period of 1.5 steps: 4 < 6 and 8 - 0 >= 6, then 12 - 8 < 6 and 16 - 8 >= 6.
        ((6, 0), [20], "T4 T8 V8 T12 T16 V16 T20 V20 C20 D20"),
        # A length that ends within a step.
        ((0, 0), [6], "T4 T6 V6 C6 D6"),
    ],
)
def test_order_of_workloads_in_the_step_era(
    periods: tuple[int, int], lengths: list[int], expected: str
) -> None:
    run = ScheduleRun(schedule("steps", 4, periods), lengths, float)
    assert str(run) == expected


@pytest.mark.parametrize(
    ("unit", "periods", "lengths", "expected"),
    [
        (4, (0, 0), [12], "T4 T8 T12 C12 V12 D12"),
        (100, (0, 0), [7], "T7 C7 V7 D7"),
        # 4, then 6 - 4 to the validation, then 4 again, 12 - 10 and the rest.
        (4, (6, 0), [16], "T4 T6 V6 T10 T12 V12 T16 C16 V16 D16"),
        (5, (6, 8), [12], "T5 T6 V6 T8 C8 T12 C12 V12 D12"),
        (10, (4, 4), [8], "T4 V4 C4 T8 C8 V8 D8"),
        (5, (0, 3), [10], "T3 C3 T6 C6 T9 C9 T10 C10 V10 D10"),
        (2, (0, 3), [6], "T2 T3 C3 T5 T6 C6 V6 D6"),
        # The validation and checkpoint at 4 count: 4 + 3 = 7, 7 + 3 = 10.
        (100, (3, 0), [4, 10], "T3 V3 T4 C4 V4 D4 T7 V7 T10 C10 V10 D10"),
        (100, (0, 3), [4, 10], "T3 C3 T4 C4 V4 D4 T7 C7 T10 C10 V10 D10"),
        (1, (0, 0), [2], "T1 T2 C2 V2 D2"),
    ],
)
def test_order_of_workloads_in_the_length_era(
    unit: int, periods: tuple[int, int], lengths: list[int], expected: str
) -> None:
    assert str(ScheduleRun(schedule("length", unit, periods), lengths, float)) == expected


# The validations at 4, 8 and 12 have `metrics`; smaller is better.
@pytest.mark.parametrize(
    ("policy", "best", "metrics", "steps", "length"),
    [
        ("all", None, [3, 3, 3], "V4 C4 V8 C8 V12 C12", "V4 C4 V8 C8 C12 V12"),
        ("none", None, [3, 2, 1], "V4 V8 V12 C12", "V4 V8 C12 V12"),
        # The first 3 is the best; a tie is no new best.
        ("best", None, [3, 3, 1], "V4 C4 V8 V12 C12", "V4 C4 V8 C12 V12"),
        ("best", None, [3, 2, 1], "V4 C4 V8 C8 V12 C12", "V4 C4 V8 C8 C12 V12"),
        # Another trial reached 2: 3 and 2 are not better, 1 is.
        ("best", 2.0, [3, 2, 1], "V4 V8 V12 C12", "V4 V8 C12 V12"),
        ("best", 2.0, [1, 1, 1], "V4 C4 V8 V12 C12", "V4 C4 V8 C12 V12"),
    ],
)
def test_policy_compares_all_validations_of_the_experiment(
    policy: str, best: float | None, metrics: list[float], steps: str, length: str
) -> None:
    for era, expected in (("steps", steps), ("length", length)):
        run = ScheduleRun(
            schedule(era, 4, (4, 0), policy), [12], lambda at: metrics[at // 4 - 1], best=best
        )
        assert " ".join(entry for entry in run.log if entry[0] in "VC") == expected


def test_a_checkpoint_by_policy_delays_the_next_periodic_checkpoint() -> None:
    # Best at 8 only. In both eras the period of 12 then ends at 8 + 12 = 20.
    metrics = {8: 5.0, 16: 6.0, 24: 7.0}
    steps = ScheduleRun(schedule("steps", 4, (8, 12), "best"), [24], metrics.__getitem__)
    assert str(steps) == "T4 T8 V8 C8 T12 T16 V16 T20 C20 T24 V24 C24 D24"
    length = ScheduleRun(schedule("length", 100, (8, 12), "best"), [24], metrics.__getitem__)
    assert str(length) == "T8 V8 C8 T16 V16 T20 C20 T24 C24 V24 D24"


# Unbroken: T4 V4 T8 V8 C8 T12 V12 C12 D12.
@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        (1, "T4 c4 | V4 T8 V8 C8 T12 V12 C12 D12"),
        (2, "T4 V4 c4 | T8 V8 C8 T12 V12 C12 D12"),
        (3, "T4 V4 T8 c8 | V8 T12 V12 C12 D12"),
        (4, "T4 V4 T8 V8 c8 | T12 V12 C12 D12"),
        (5, "T4 V4 T8 V8 C8 | T12 V12 C12 D12"),
        (6, "T4 V4 T8 V8 C8 T12 c12 | V12 D12"),
        # The metric is known, so the operation is completed before the stop.
        (7, "T4 V4 T8 V8 C8 T12 V12 C12 D12"),
    ],
)
def test_a_stopped_trial_in_steps_resumes(stop: int, expected: str) -> None:
    run = ScheduleRun(schedule("steps", 4, (4, 8)), [12], float, stops=[stop])
    assert str(run) == expected


# Unbroken: T5 T6 V6 T8 C8 T12 C12 V12 D12.
@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        (1, "T5 c5 | T6 V6 T8 C8 T12 C12 V12 D12"),
        (2, "T5 T6 c6 | V6 T8 C8 T12 C12 V12 D12"),
        (3, "T5 T6 V6 c6 | T8 C8 T12 C12 V12 D12"),
        (4, "T5 T6 V6 T8 c8 | T12 C12 V12 D12"),
        (5, "T5 T6 V6 T8 C8 | T12 C12 V12 D12"),
        (6, "T5 T6 V6 T8 C8 T12 c12 | V12 D12"),
        (7, "T5 T6 V6 T8 C8 T12 C12 | V12 D12"),
        (8, "T5 T6 V6 T8 C8 T12 C12 V12 D12"),
    ],
)
def test_a_stopped_trial_in_lengths_resumes(stop: int, expected: str) -> None:
    run = ScheduleRun(schedule("length", 5, (6, 8)), [12], float, stops=[stop])
    assert str(run) == expected


@pytest.mark.parametrize(
    ("era", "cuts", "expected"),
    [
        ("steps", [3], "c3 | T4 T8 V8 C8 D8"),
        ("steps", [1, 2, 7], "c1 | c2 | T4 c7 | T8 V8 C8 D8"),
        ("length", [3], "c3 | T4 T8 C8 V8 D8"),
    ],
)
def test_a_workload_cut_by_a_deadline_is_completed_first(
    era: str, cuts: list[int], expected: str
) -> None:
    assert str(ScheduleRun(schedule(era, 4, (0, 0)), [8], float, cuts=cuts)) == expected


SCHEDULES = [
    (schedule(era, unit, periods, policy), lengths)
    for era, unit, periods, policy, lengths in product(
        ERAS,
        (4,),
        ((0, 0), (4, 0), (0, 4), (4, 8), (8, 4), (5, 7)),
        ("none", "all", "best"),
        ([12], [4, 12], [8, 9, 20]),
    )
]


@pytest.mark.parametrize(("schedule", "lengths"), SCHEDULES)
def test_interruptions_do_not_change_the_workloads(schedule: Schedule, lengths: list[int]) -> None:
    # 6, 1, 7, 2, 8 at 4, 8, ..., 20: some are best, some are not.
    def metric(steps: int) -> float:
        return float((7 * steps) % 11)

    whole = ScheduleRun(schedule, lengths, metric)
    for first in range(1, len(whole.log) + 1):
        _assert_same(whole, ScheduleRun(schedule, lengths, metric, stops={first}))
        # After two stops around a validation, it is unknown whether the validation was the best.
        # The next periodic checkpoint depends on the answer.
        if schedule.policy != "best" or schedule.checkpoint_period == 0:
            stops = {first, first + 1, first + 4}
            _assert_same(whole, ScheduleRun(schedule, lengths, metric, stops=stops))
    for cut in range(1, lengths[-1]):
        _assert_same(whole, ScheduleRun(schedule, lengths, metric, cuts=[cut]))


def _assert_same(whole: ScheduleRun, broken: ScheduleRun) -> None:
    """Assert that both runs have equal workloads, except for checkpoints at stops.

    No workload may be repeated.
    """
    done = [entry for entry in broken.log if entry != "|"]
    assert [entry for entry in done if entry[0] in "TVD"] == [
        entry for entry in whole.log if entry[0] in "TVD"
    ], broken
    checkpoints = [entry[1:] for entry in done if entry[0] in "Cc"]
    assert len(set(checkpoints)) == len(checkpoints), broken
    scheduled = {entry[1:] for entry in whole.log if entry[0] == "C"}
    kept_for_stops = {entry[1:] for entry in done if entry[0] == "c"}
    assert scheduled <= set(checkpoints) <= scheduled | kept_for_stops, broken


@pytest.mark.parametrize(
    ("answered", "validated", "expected"),
    [
        (0, None, 3),  # no known validation: the saved position counts
        (8, None, 8),  # the validation at 8 followed the checkpoint at 8
        (0, 8, 8),
        (2, 3, 3),
        (50, 50, 3),  # training restarts from an older checkpoint, with new validations
    ],
)
def test_a_restart_uses_validations_known_to_the_cluster(
    answered: int, validated: int | None, expected: int
) -> None:
    position = Position(8, 5, last_validation=3, last_checkpoint=2, metric=1.0)
    resumed = position.after_restart(SCHEDULE, answered, validated)
    assert (resumed.last_validation, resumed.saved) == (expected, 8)
    assert resumed.last_checkpoint == 2


@pytest.mark.parametrize(
    ("policy", "smaller", "metric", "bests", "expected"),
    [
        ("all", True, 9.0, (1.0, 1.0), True),
        ("none", True, 0.0, (None, None), False),
        ("best", True, 9.0, (None, None), True),
        ("best", True, 1.0, (1.0, None), False),
        ("best", True, 0.9, (1.0, 0.5), False),
        ("best", True, 0.4, (1.0, 0.5), True),
        ("best", False, 0.6, (None, 0.5), True),
        ("best", True, float("nan"), (None, None), False),
    ],
)
def test_policy_best_saves_only_new_bests(
    policy: str, smaller: bool, metric: float, bests: tuple[float | None, ...], expected: bool
) -> None:
    schedule = replace(SCHEDULE, policy=policy, smaller_is_better=smaller)
    assert policy_wants_checkpoint(schedule, metric, *bests) is expected


def test_a_repeated_best_validation_counts_as_best() -> None:
    best = replace(SCHEDULE, policy="best")
    assert policy_wants_checkpoint(best, 0.5, 0.5, None, repeats=True)
    assert not policy_wants_checkpoint(best, 0.6, 0.5, None, repeats=True)
