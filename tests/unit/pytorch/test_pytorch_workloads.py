from dataclasses import replace

import pytest

from detcloud.pytorch.workloads import (
    Position,
    Schedule,
    checkpoint_is_due,
    policy_wants_checkpoint,
    validation_is_due,
    workload_end,
)

SCHEDULE = Schedule(
    scheduling_unit=10,
    validation_period=0,
    checkpoint_period=0,
    policy="best",
    smaller_is_better=True,
)


@pytest.mark.parametrize(
    ("position", "validation", "checkpoint", "length", "expected"),
    [
        (Position(0, 0), 0, 0, 100, 10),  # 0 + unit 10
        (Position(0, 0), 0, 0, 7, 7),  # the operation's end
        (Position(20, 20), 4, 0, 100, 24 - 3),  # 0 + 4 has passed: at least one batch
        (Position(20, 20, last_validation=18), 4, 0, 100, 22),  # 18 + 4
        (Position(20, 20, last_checkpoint=15), 0, 9, 100, 24),  # 15 + 9
        (Position(23, 20), 0, 0, 100, 30),  # a cut workload ends where it would have: 20 + 10
        (Position(30, 20), 0, 0, 100, 31),
    ],
)
def test_a_workload_ends_at_the_nearest_boundary(
    position: Position, validation: int, checkpoint: int, length: int, expected: int
) -> None:
    schedule = replace(SCHEDULE, validation_period=validation, checkpoint_period=checkpoint)
    assert workload_end(schedule, position, length) == expected


def test_a_period_counts_from_the_last_time() -> None:
    schedule = replace(SCHEDULE, validation_period=4, checkpoint_period=5)
    position = Position(10, 10, last_validation=7, last_checkpoint=5)
    # 10 - 7 = 3 < 4, and 10 - 5 = 5.
    assert not validation_is_due(schedule, position)
    assert checkpoint_is_due(schedule, position)
    assert validation_is_due(schedule, replace(position, last_validation=6))


def test_a_period_of_nought_is_off() -> None:
    position = Position(1000)
    assert not validation_is_due(SCHEDULE, position)
    assert not checkpoint_is_due(SCHEDULE, position)


@pytest.mark.parametrize(
    ("answered", "validated"),
    [
        (0, 3),  # nothing was answered: as saved
        (8, 8),  # the checkpoint of 8 was followed by the validation of 8
        (2, 3),
        (50, 8),  # never later than where training is
    ],
)
def test_a_restart_knows_what_the_cluster_answered(answered: int, validated: int) -> None:
    resumed = Position(8, 5, last_validation=3, last_checkpoint=2).resumed(answered)
    assert resumed == Position(8, 5, last_validation=validated, last_checkpoint=8)


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
def test_only_what_beats_every_best_is_best(
    policy: str, smaller: bool, metric: float, bests: tuple[float | None, ...], expected: bool
) -> None:
    schedule = replace(SCHEDULE, policy=policy, smaller_is_better=smaller)
    assert policy_wants_checkpoint(schedule, metric, *bests) is expected
