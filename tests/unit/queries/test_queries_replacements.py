"""The sums of replacements by cause and phase."""

import pytest

from control_plane.actors.replacement import ReplacementRecord
from control_plane.queries.replacements import quantile, sum_replacements


def record(
    duration_ms: int, *, cause: str = "notice", boot_ms: int | None = None, measured: bool = True
) -> ReplacementRecord:
    phases = {} if boot_ms is None else {"boot": boot_ms}
    return ReplacementRecord(
        experiment=1,
        trial=4,
        cause=cause,
        reason="",
        from_epoch=1,
        epoch=2,
        from_agent="a",
        agents=("b",),
        begun_ms=1_000,
        ended_ms=1_000 + duration_ms,
        attempts=0,
        phases={**phases, "start": duration_ms - (boot_ms or 0)},
        has_first_step=measured,
    )


@pytest.mark.parametrize(
    ("share", "expected"),
    # Of ten values, five are at most 5, and nine at most 9.
    [(0.5, 5), (0.9, 9), (1, 10), (0.01, 1)],
)
def test_quantile_is_a_value(share: float, expected: int) -> None:
    assert quantile([10, 9, 8, 7, 6, 5, 4, 3, 2, 1], share) == expected


def test_quantile_of_one_value() -> None:
    assert (quantile([7], 0.5), quantile([7], 0.9)) == (7, 7)


def test_sums_by_cause_in_order() -> None:
    sums = sum_replacements(
        [
            record(5_000, cause="flood"),
            record(9_000, cause="preemption"),
            record(4_000, boot_ms=1_000),
            record(2_000),
            record(60_000, measured=False),
        ]
    )
    assert [(each.cause, each.count, each.unmeasured) for each in sums] == [
        ("notice", 2, 1),
        ("preemption", 1, 0),
        ("flood", 1, 0),
    ]
    phases = [(each.phase, each.count, each.median_ms, each.p90_ms) for each in sums[0].phases]
    # Of two values, the median is the smaller, and 90 % are within the larger.
    assert phases == [
        ("total", 2, 2_000, 4_000),
        ("boot", 1, 1_000, 1_000),
        ("start", 2, 2_000, 3_000),
    ]


def test_replacements_without_a_first_step_are_only_counted() -> None:
    (only,) = sum_replacements([record(60_000, measured=False)])
    assert (only.count, only.unmeasured, only.phases) == (0, 1, [])
