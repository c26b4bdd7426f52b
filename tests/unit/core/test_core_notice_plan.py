"""The choice between saving, finishing and keeping before the machine ends."""

import pytest

from detcloud.core.notice_plan import Choice, Situation, choose_action

MB = 1_000_000
SAVE, FINISH, KEEP = Choice.SAVE, Choice.FINISH, Choice.KEEP

# The expected time of an upload is 5/4 of size / rate; 2 s are reserved for the steps after the
# upload.
CASES: dict[str, tuple[Choice, Situation, str]] = {
    # 100 MB at 10 MB/s take 12.5 s of 30 - 2 = 28 s.
    "time enough": (
        SAVE,
        Situation(30, False, 100 * MB, 10 * MB),
        "100.0 MB at 10.0 MB/s take 12.5 s, and there are 28.0 s",
    ),
    "just enough": (SAVE, Situation(14.5, False, 100 * MB, 10 * MB), "take 12.5 s"),
    "a moment too late": (
        KEEP,
        Situation(14.4, False, 100 * MB, 10 * MB),
        "100.0 MB at 10.0 MB/s would take 12.5 s, and there are 12.4 s",
    ),
    "no time at all": (KEEP, Situation(1, False, 100 * MB, 10 * MB), "there are 0.0 s"),
    # A trial without a known rate has nothing to lose by trying.
    "no rate known": (SAVE, Situation(5, False), "the duration of a save is unknown"),
    "a deadline that has passed": (SAVE, Situation(-3, False, 100 * MB, 10 * MB), "has passed"),
    "nothing new": (KEEP, Situation(30, True, 100 * MB, 10 * MB), "has all of the work"),
    # The running upload needs 12.5 - 5 = 7.5 s more, and the new upload 12.5 s: 20 of 28 s.
    "both uploads": (
        SAVE,
        Situation(30, False, 100 * MB, 10 * MB, 100 * MB, 5),
        "take 12.5 s behind an upload that needs 7.5 s more",
    ),
    # Both uploads need 20 of 18 s; the running upload alone needs 7.5 s.
    "only the running upload": (
        FINISH,
        Situation(20, False, 100 * MB, 10 * MB, 100 * MB, 5),
        "would take 20.0 s, and there are 18.0 s; the upload that runs is older",
    ),
    "no upload in time": (
        KEEP,
        Situation(9, False, 100 * MB, 10 * MB, 100 * MB, 5),
        "would need 7.5 s more, but there are 7.0 s",
    ),
    # 40 s exceed 12.5 s: a tenth of 12.5 s is expected for the rest, 1.25 s, and then 12.5 s.
    "an upload that is late": (
        FINISH,
        Situation(10, False, 100 * MB, 10 * MB, 100 * MB, 40),
        "would take 13.8 s, and there are 8.0 s",
    ),
    "running upload has all work": (
        FINISH,
        Situation(10, True, 100 * MB, 10 * MB, 100 * MB, 5),
        "has all of the work and needs 7.5 s more",
    ),
    "running upload has all work, too late": (
        KEEP,
        Situation(9, True, 100 * MB, 10 * MB, 100 * MB, 5),
        "would need 7.5 s more, but there are 7.0 s",
    ),
    "running upload has all work, unknown rate": (
        FINISH,
        Situation(9, True, None, None, 100 * MB, 5),
        "has all of the work",
    ),
    "running upload has all work, after the deadline": (
        FINISH,
        Situation(-1, True, 100 * MB, 10 * MB, 100 * MB, 5),
        "has all of the work",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_choice_of_action_before_a_deadline(name: str) -> None:
    expected, situation, reason = CASES[name]
    choice, why = choose_action(situation)
    assert choice is expected
    assert reason in why


def test_more_time_never_weakens_the_choice() -> None:
    order = [KEEP, FINISH, SAVE]
    for seconds in range(1, 60):
        for running in (None, 100 * MB):
            now = Situation(seconds, False, 100 * MB, 10 * MB, running, 5)
            later = Situation(seconds + 1, False, 100 * MB, 10 * MB, running, 5)
            assert order.index(choose_action(later)[0]) >= order.index(choose_action(now)[0])
