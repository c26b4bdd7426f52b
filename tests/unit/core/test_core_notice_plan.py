"""The choice of a trial whose machine ends soon: each row is worked out by hand."""

import pytest

from detcloud.core.notice_plan import Choice, Situation, choose_action

MB = 1_000_000
SAVE, FINISH, KEEP = Choice.SAVE, Choice.FINISH, Choice.KEEP

# An upload is taken to need 5/4 of its size by its rate, and 2 s are left for what comes behind.
CASES: dict[str, tuple[Choice, Situation, str]] = {
    # 100 MB at 10 MB/s: 12.5 s, of 30 - 2.
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
    # Who has nothing to lose tries.
    "no rate known": (SAVE, Situation(5, False), "the duration of a save is unknown"),
    "a deadline that has passed": (SAVE, Situation(-3, False, 100 * MB, 10 * MB), "has passed"),
    "nothing new": (KEEP, Situation(30, True, 100 * MB, 10 * MB), "has all of the work"),
    # The running one needs 12.5 - 5 = 7.5 s more, and another one 12.5 s: 20 of 28 s.
    "both uploads": (
        SAVE,
        Situation(30, False, 100 * MB, 10 * MB, 100 * MB, 5),
        "take 12.5 s behind an upload that needs 7.5 s more",
    ),
    # 20 of 18 s for both, 7.5 s for the one that runs.
    "one of two": (
        FINISH,
        Situation(20, False, 100 * MB, 10 * MB, 100 * MB, 5),
        "would take 20.0 s, and there are 18.0 s; the upload that runs is older",
    ),
    "neither of two": (
        KEEP,
        Situation(9, False, 100 * MB, 10 * MB, 100 * MB, 5),
        "would need 7.5 s more, but there are 7.0 s",
    ),
    # 40 s are longer than 12.5: a tenth of that is expected still, 1.25 s and then 12.5 s.
    "an upload that is late": (
        FINISH,
        Situation(10, False, 100 * MB, 10 * MB, 100 * MB, 40),
        "would take 13.8 s, and there are 8.0 s",
    ),
    "its upload has all": (
        FINISH,
        Situation(10, True, 100 * MB, 10 * MB, 100 * MB, 5),
        "has all of the work and needs 7.5 s more",
    ),
    "its upload has all, too late": (
        KEEP,
        Situation(9, True, 100 * MB, 10 * MB, 100 * MB, 5),
        "would need 7.5 s more, but there are 7.0 s",
    ),
    "its upload has all, of unknown rate": (
        FINISH,
        Situation(9, True, None, None, 100 * MB, 5),
        "has all of the work",
    ),
    "its upload has all, after the deadline": (
        FINISH,
        Situation(-1, True, 100 * MB, 10 * MB, 100 * MB, 5),
        "has all of the work",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_choice_follows_from_what_is_known(name: str) -> None:
    expected, situation, reason = CASES[name]
    choice, why = choose_action(situation)
    assert choice is expected
    assert reason in why


def test_more_time_never_leads_to_less() -> None:
    order = [KEEP, FINISH, SAVE]
    for seconds in range(1, 60):
        for running in (None, 100 * MB):
            now = Situation(seconds, False, 100 * MB, 10 * MB, running, 5)
            later = Situation(seconds + 1, False, 100 * MB, 10 * MB, running, 5)
            assert order.index(choose_action(later)[0]) >= order.index(choose_action(now)[0])
