"""An experiment with several preferred pools, and moves to the next pool."""

from dataclasses import replace

import pytest

from control_plane.actors.job_row import POOLS, JobRow, decode_job
from control_plane.actors.messages.experiment import (
    ActivateRequested,
    CancelRequested,
    PauseRequested,
    PoolChanged,
    TrialEnded,
    TrialValidationReported,
    WaitEnded,
)
from control_plane.actors.messages.pool import JobChanged
from control_plane.actors.messages.trial import TrialMoved
from control_plane.actors.pool_moves import PoolMoves, PoolPreferences
from control_plane.actors.records import Status
from control_plane.actors.step import ObservedRow
from tests.unit.actors.actor_harness import ABSENT, START_MS, ActorHarness
from tests.unit.actors.sample_messages import SUBMITTED_MS, experiment_submitted, random_plan

SORT = "000000000001"
PATIENCE = 600
WHY = "nothing came"
FIRST, SECOND = "default", "spot"


def experiment(*pools: str, trials: int = 2) -> ActorHarness:
    """Create an experiment with a job in the first of the given pools. All pools exist."""
    actor = ActorHarness("experiment#1")
    for name in pools:
        actor.rows[POOLS, name] = ObservedRow(1, b"")
    preferences = PoolPreferences(pools, PATIENCE) if len(pools) > 1 else None
    actor.deliver(replace(experiment_submitted(random_plan(trials)), pools=preferences))
    return actor


def row(actor: ActorHarness, pool: str) -> JobRow | None:
    seen = actor.row(f"jobs#{pool}", SORT)
    return None if seen == ABSENT else decode_job(seen.body)


def stay(number: int, rounds: int = 0, since_ms: int | None = None) -> JobRow:
    job = JobRow(SUBMITTED_MS, patience_ms=PATIENCE)
    return replace(job, stay=number, rounds=rounds, waits_since_ms=since_ms)


def test_job_row_has_the_patience() -> None:
    assert row(experiment(FIRST, SECOND), FIRST) == stay(0)
    alone = experiment(FIRST)
    assert row(alone, FIRST) == JobRow(SUBMITTED_MS)
    # The row of a job with a single pool has no patience.
    assert b"patience" not in alone.row(f"jobs#{FIRST}", SORT).body


def test_job_moves_to_the_next_pool_and_trials_keep_slots() -> None:
    actor = experiment(FIRST, SECOND)
    actor.now_ms += 7
    actor.deliver(WaitEnded(FIRST, 0, START_MS, WHY))
    assert (row(actor, FIRST), row(actor, SECOND)) == (None, stay(1, since_ms=START_MS))
    moved = [TrialMoved(SECOND, keeps_slots=True)]
    assert actor.messages_to("trial#1") == actor.messages_to("trial#2") == moved
    assert actor.messages_to(f"pool#{FIRST}") == [JobChanged(1)]
    assert actor.messages_to(f"pool#{SECOND}") == [JobChanged(1)]
    moves = PoolMoves(1, 0, START_MS, START_MS + 7, WHY)
    assert (actor.state.pool, actor.state.pool_moves) == (SECOND, moves)
    assert actor.reasons == [f"resource pool {FIRST} to {SECOND}"]


def test_first_pool_follows_the_last_in_the_next_round() -> None:
    actor = experiment(FIRST, SECOND)
    actor.deliver(WaitEnded(FIRST, 0, START_MS, WHY))
    actor.now_ms += PATIENCE
    actor.deliver(WaitEnded(SECOND, 1, actor.now_ms, WHY))
    assert row(actor, FIRST) == stay(2, rounds=1, since_ms=START_MS)
    assert row(actor, SECOND) is None


@pytest.mark.parametrize(
    "late",
    [
        # Repeated.
        WaitEnded(FIRST, 0, START_MS, WHY),
        # About the earlier stay in the job's present pool.
        WaitEnded(SECOND, 0, START_MS, WHY),
        # About a stay that has not begun.
        WaitEnded(SECOND, 2, START_MS, WHY),
    ],
)
def test_message_about_a_different_stay_changes_no_state(late: WaitEnded) -> None:
    actor = experiment(FIRST, SECOND)
    actor.deliver(WaitEnded(FIRST, 0, START_MS, WHY))
    before = actor.state
    actor.deliver(late)
    assert (actor.state, actor.sent) == (before, [])


def test_message_about_an_earlier_stay_in_the_same_pool_changes_no_state() -> None:
    actor = experiment(FIRST, SECOND)
    actor.deliver(WaitEnded(FIRST, 0, START_MS, WHY), WaitEnded(SECOND, 1, START_MS, WHY))
    assert actor.state.pool == FIRST
    actor.deliver(WaitEnded(FIRST, 0, START_MS, WHY))
    assert (actor.state.pool, actor.sent) == (FIRST, [])


def test_move_by_a_user_ends_automatic_moves() -> None:
    actor = experiment(FIRST, SECOND, "third")
    actor.deliver(PoolChanged(SECOND))
    assert row(actor, SECOND) == JobRow(SUBMITTED_MS)
    assert actor.messages_to("trial#1") == [TrialMoved(SECOND)]
    for number in (0, 1):
        actor.deliver(WaitEnded(SECOND, number, START_MS, WHY))
        assert (actor.state.pool, actor.sent) == (SECOND, [])


def test_removed_pools_are_skipped() -> None:
    actor = experiment(FIRST, SECOND, "third")
    del actor.rows[POOLS, SECOND]
    actor.deliver(WaitEnded(FIRST, 0, START_MS, WHY))
    assert actor.state.pool == "third"
    del actor.rows[POOLS, FIRST]
    actor.deliver(WaitEnded("third", 1, START_MS, WHY))
    assert (actor.state.pool, actor.sent) == ("third", [])
    assert actor.reasons == ["stays in pool third: none of its other pools exists"]


def test_paused_or_stopping_experiment_stays_in_the_pool() -> None:
    actor = experiment(FIRST, SECOND)
    actor.deliver(PauseRequested())
    actor.deliver(WaitEnded(FIRST, 0, START_MS, WHY))
    assert (actor.state.pool, actor.sent) == (FIRST, [])
    actor.deliver(ActivateRequested(), CancelRequested())
    actor.deliver(WaitEnded(FIRST, 0, START_MS, WHY))
    assert (actor.state.pool, actor.sent) == (FIRST, [])
    actor.deliver(TrialEnded(0, Status.CANCELED, ""), TrialEnded(1, Status.CANCELED, ""))
    assert actor.state.status is Status.CANCELED
    actor.deliver(WaitEnded(FIRST, 0, START_MS, WHY))
    assert (actor.state.pool, actor.sent, row(actor, FIRST)) == (FIRST, [], None)


def test_job_with_a_single_pool_does_not_move() -> None:
    actor = experiment(FIRST)
    actor.deliver(WaitEnded(FIRST, 0, START_MS, WHY))
    assert (actor.state.pool, actor.sent) == (FIRST, [])


def test_rounds_are_counted_from_the_last_run() -> None:
    actor = experiment(FIRST, SECOND)
    for number, name in enumerate((FIRST, SECOND, FIRST)):
        actor.deliver(WaitEnded(name, number, START_MS, WHY))
    assert row(actor, SECOND) == stay(3, rounds=1, since_ms=START_MS)
    actor.deliver(TrialValidationReported(0, 10, 0.5))
    assert row(actor, SECOND) == stay(3)
    # Later validations write no row.
    actor.deliver(TrialValidationReported(0, 20, 0.5))
    assert JobChanged(1) not in [send.message for send in actor.sent]
    actor.deliver(WaitEnded(SECOND, 3, START_MS + 9, WHY))
    assert row(actor, FIRST) == stay(4, since_ms=START_MS + 9)
