"""What is remembered of each trial of a halving."""

import pytest

from control_plane.searchers.parts import NoParts
from control_plane.searchers.roster import TRIALS_PER_PART, Roster, Standing
from tests.unit.searchers.kept import Kept

# About a part's end, and far beyond what was written.
TRIALS = [0, 1, TRIALS_PER_PART - 1, TRIALS_PER_PART, 10 * TRIALS_PER_PART]


@pytest.mark.parametrize("trial", TRIALS)
def test_a_trial_that_nothing_was_said_of_is_in_the_first_rung(trial: int) -> None:
    assert Roster(Kept(), ()).standing(trial) == Standing(0, exited=False, closed=False)


def test_the_first_trials_are_in_the_brackets_they_were_created_for() -> None:
    # 2 for bracket 0, 0 for bracket 1, 3 for bracket 2.
    roster = Roster(NoParts(), (2, 0, 3))
    assert [roster.bracket(trial) for trial in range(5)] == [0, 0, 2, 2, 2]


def test_every_trial_of_a_single_bracket_is_in_it() -> None:
    assert Roster(NoParts(), ()).bracket(1_000_000) == 0


@pytest.mark.parametrize("bracket", [0, 1, 254])
@pytest.mark.parametrize("trial", TRIALS)
def test_a_trial_that_was_enlisted_is_in_that_bracket(trial: int, bracket: int) -> None:
    roster = Roster(Kept(), (1, 1))
    roster.enlist(trial, bracket)
    assert roster.bracket(trial) == bracket
    assert roster.standing(trial) == Standing()


@pytest.mark.parametrize("exited", [False, True])
@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("reported", [False, True])
@pytest.mark.parametrize("rung", [0, 1, 99])
def test_a_standing_is_kept_beside_the_bracket_and_the_neighbours(
    rung: int, reported: bool, closed: bool, exited: bool
) -> None:
    parts = Kept()
    standing = Standing(rung, exited, closed, reported)
    Roster(parts, (1, 1)).enlist(7, 5)
    Roster(parts, (1, 1)).stand(7, standing)
    roster = Roster(parts, (1, 1))
    assert (roster.standing(7), roster.bracket(7)) == (standing, 5)
    assert {roster.standing(trial) for trial in (6, 8)} == {Standing()}
    roster.stand(7, Standing())
    assert (roster.standing(7), roster.bracket(7)) == (Standing(), 5)


def test_a_roster_of_before_results_were_noted_reads_as_it_did() -> None:
    parts = Kept()
    # Bracket 1 + 1, rung 3, and of the flags 1: exited, 2: closed.
    parts.write("0", bytes((2, 3, 0, 0, 1, 3)))
    roster = Roster(parts, ())
    assert (roster.bracket(0), roster.standing(0)) == (1, Standing(3))
    assert roster.standing(1) == Standing(1, exited=True, closed=True)


def test_reading_writes_nothing_and_makes_no_part_longer() -> None:
    parts = Kept()
    roster = Roster(parts, ())
    roster.standing(9)
    assert parts.written == []
    roster.stand(0, Standing(1))
    assert parts.pieces == {"0": bytes((0, 1, 0))}


def test_parts_stay_small_and_a_change_writes_one() -> None:
    parts = Kept()
    roster = Roster(parts, ())
    for trial in range(3 * TRIALS_PER_PART):
        roster.stand(trial, Standing(1))
    assert len(parts.pieces) == 3
    assert {len(piece) for piece in parts.pieces.values()} == {3 * TRIALS_PER_PART}
    parts.written.clear()
    roster.stand(TRIALS_PER_PART, Standing(2))
    assert len(parts.written) == 1
