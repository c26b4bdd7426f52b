"""Shares of a slot in `resources.slots_per_trial`."""

import pytest

from control_plane.config.slot_shares import SHARERS_MAX, sharers_of
from control_plane.config.trial_settings import job_of, trial_settings
from tests.unit.config.samples import LENGTH, STEP, check_changed, find_messages

SLOTS = "resources.slots_per_trial"


@pytest.mark.parametrize(
    ("share", "sharers"),
    [(0.5, 2), (0.25, 4), (0.3, 3), (0.2, 5), (0.1, 10), (0.7, 1), (1 / SHARERS_MAX, SHARERS_MAX)],
)
def test_slot_is_shared_by_as_many_trials_as_fit(share: float, sharers: int) -> None:
    config = check_changed(LENGTH, {SLOTS: share})
    assert (config.job.slots_per_trial, config.job.slot_sharers) == (1, sharers)
    assert job_of(config, 1).slot_sharers == sharers
    settings = trial_settings(config, "default", 1)
    assert (settings.slots, settings.slot_sharers) == (1, sharers)


@pytest.mark.parametrize("slots", [0, 1, 2, 8])
def test_whole_slots_are_not_shared(slots: int) -> None:
    assert sharers_of(slots) == 1


@pytest.mark.parametrize("base", [STEP, LENGTH])
def test_share_is_kept_as_the_user_wrote_it(base: dict[str, object]) -> None:
    config = check_changed(base, {SLOTS: 0.25})
    assert config.masked_values()["resources"]["slots_per_trial"] == 0.25


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (1.5, "must be an integer, or a share of a slot between 0 and 1, not 1.5"),
        (-0.5, "must be an integer, or a share of a slot between 0 and 1, not -0.5"),
        (0.01, "must be at least 1/64, not 0.01"),
        (-1, "must be at least 0, not -1"),
        ("0.25", 'must be an integer, or a share of a slot such as 0.25, not "0.25"'),
        (True, "must be an integer, or a share of a slot such as 0.25, not true"),
        (2**53, f"must be at most {2**53 - 1}, not {2**53}"),
    ],
)
def test_other_values_are_refused(value: object, message: str) -> None:
    assert find_messages(LENGTH, {SLOTS: value})[SLOTS].startswith(message)


def test_one_slot_is_enough_for_max_slots() -> None:
    resources = {"slots_per_trial": 0.25, "max_slots": 1}
    assert check_changed(LENGTH, {"resources": resources}).job.max_slots == 1
