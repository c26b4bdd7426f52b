"""When a folder is compared with its last snapshot, and which sizes the log names."""

from typing import Any

import pytest

from detcloud.launch.snapshot_plan import KeptSettings, SnapshotPlan

SETTINGS = KeptSettings(300.0, 1000)


@pytest.mark.parametrize(
    ("fields", "settings"),
    [
        ({"period_ms": 300_000, "bytes_max": 1000}, SETTINGS),
        ({}, None),
        (None, None),
        ({"period_ms": 0, "bytes_max": 1000}, None),
        ({"period_ms": "5m", "bytes_max": 1000}, None),
    ],
)
def test_settings_are_read_from_the_specification(
    fields: dict[str, Any] | None, settings: KeptSettings | None
) -> None:
    assert KeptSettings.of_spec(fields) == settings


def test_folder_is_compared_once_in_a_period() -> None:
    plan = SnapshotPlan(SETTINGS, now=0)
    times = [299, 300, 301, 599, 600]
    assert [plan.is_due(now, has_notice=False) for now in times] == [
        False,
        True,
        False,
        False,
        True,
    ]


def test_notice_makes_the_folder_due_at_once_then_every_10_seconds() -> None:
    plan = SnapshotPlan(SETTINGS, now=0)
    times = [1, 10.9, 11, 20, 21]
    assert [plan.is_due(now, has_notice=True) for now in times] == [True, False, True, False, True]


def test_short_period_stays_after_a_notice() -> None:
    plan = SnapshotPlan(KeptSettings(2.0, 1000), now=0)
    assert [plan.is_due(now, has_notice=True) for now in (1, 2, 3)] == [True, False, True]


def test_folder_that_is_too_large_is_reported_once_for_each_growth() -> None:
    plan = SnapshotPlan(SETTINGS, now=0)
    assert plan.fits(1000)
    reported = []
    for size in (1001, 1001, 1050, 1200, 1200):
        assert not plan.fits(size)
        reported.append(plan.should_report(size))
    # 1200 is more than 110 % of 1001; 1050 is not.
    assert reported == [True, False, False, True, False]


def test_folder_that_grows_again_after_it_fitted_is_reported_again() -> None:
    plan = SnapshotPlan(SETTINGS, now=0)
    assert plan.should_report(2000)
    assert plan.fits(10)
    assert plan.should_report(1500)
