"""Tests of messages that fail in every fold: dead letters delay only the affected actor."""

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from control_plane.actors.messages.experiment import PauseRequested, TrialValidationReported
from control_plane.actors.messages.pool import SlotsReleased, SlotsRequested
from control_plane.actors.messages.trial import ValidationReported, WorkAssigned
from control_plane.actors.records import Status
from control_plane.actors.step import StepContext
from control_plane.engine import due_rows, mailbox
from control_plane.engine.engine import Engine
from control_plane.engine.head import HEAD
from control_plane.state.table import Expect, Key, Put
from simulator.faults.table_faults import Crash, CrashingTable
from simulator.stepped.small_search import POOL, submission
from simulator.stepped.stepped_cluster import SteppedCluster
from tests.changed_actors import change_actor_type
from tests.engine_timing import UNHURRIED
from tests.simulation.mailed_messages import put_mail
from tests.simulation.scenarios import hold
from tests.simulation.scripts import train_at_once

EXPERIMENT = "experiment#1"
# Ticks after every message of the real senders of the same millisecond.
LATER = 1_000


def poison(
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    is_poison: Callable[[Any], bool],
    error: BaseException,
) -> list[int]:
    """Patch the step of an actor kind to raise `error` for messages that `is_poison` selects.

    Return a list that gets the time of each raise in milliseconds.
    """
    raised: list[int] = []

    def step(state: Any, message: Any, context: StepContext) -> Any:
        if is_poison(message):
            raised.append(context.now_ms)
            raise error
        return healthy.step(state, message, context)

    healthy = change_actor_type(monkeypatch, kind, step=step)
    return raised


def pass_time(cluster: SteppedCluster, seconds: int) -> None:
    for _ in range(seconds):
        cluster.round()


def dead_letters(cluster: SteppedCluster) -> list[Key]:
    return [key for key in cluster.checker.rows if key.sort.startswith("D#")]


def test_poisoned_trial_ends_in_error_and_the_search_completes(
    cluster: SteppedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison(
        monkeypatch,
        "trial",
        lambda message: isinstance(message, ValidationReported) and message.metric == 0.571884,
        ValueError("poison"),
    )
    cluster.add_agent("a", 2, train_at_once)
    cluster.submit(4)
    pass_time(cluster, 4)
    # Only trial 2 has a metric under 0.6 (0.571884); trials 1, 3 and 4 complete at once.
    done = {
        t.trial_id for t in cluster.checker.actor_states("trial") if t.status is Status.COMPLETED
    }
    assert done == {1, 3, 4}
    cluster.run_to_rest()
    assert cluster.checker.actor_state("trial#2").status is Status.ERROR
    # All lines of the call are one row; lines before the poisoned line are folded.
    assert "ValidationReported" in cluster.checker.actor_state("trial#2").message
    assert cluster.checker.actor_state(EXPERIMENT).status is Status.COMPLETED
    assert cluster.checker.actor_state(EXPERIMENT).trials_errored == 1
    assert [key.partition for key in dead_letters(cluster)] == ["trial#2"]


def test_poisoned_experiment_ends_in_error_and_stops_the_trials(
    cluster: SteppedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison(
        monkeypatch,
        "experiment",
        lambda message: isinstance(message, TrialValidationReported),
        ValueError("poison"),
    )
    cluster.add_agent("a", 2, hold)
    cluster.submit(4)
    other = submission(2, 1)
    cluster.command("experiment#2", other)
    cluster.run_to_rest()
    assert cluster.checker.actor_state(EXPERIMENT).status is Status.ERROR
    assert {t.status for t in cluster.checker.actor_states("trial")} <= {
        Status.CANCELED,
        Status.ERROR,
    }


def test_fold_that_kills_the_process_is_retried_and_then_dead_lettered(
    cluster: SteppedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.submit(1)
    died = poison(
        monkeypatch,
        "trial",
        lambda message: isinstance(message, WorkAssigned),
        Crash("out of memory"),
    )
    put_mail(cluster.engine, "trial#1", EXPERIMENT, WorkAssigned(8, False))
    for _ in range(90):
        cluster.now_ms += 1000
        cluster.tick()
    # 5 attempts, each counted in advance; after the fifth the message becomes a dead letter.
    assert len(died) == mailbox.ATTEMPTS_MAX
    assert [key.partition for key in dead_letters(cluster)] == ["trial#1"]
    assert cluster.checker.actor_state("trial#1").status is Status.ERROR
    assert cluster.checker.pending_mail() == []


def test_fold_is_retried_after_2_4_8_and_16_seconds(
    cluster: SteppedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.submit(1)
    tried = poison(
        monkeypatch, "trial", lambda message: isinstance(message, WorkAssigned), Crash("killed")
    )
    began = cluster.now_ms
    put_mail(cluster.engine, "trial#1", EXPERIMENT, WorkAssigned(8, False))
    for _ in range(90):
        # The tick as a bare pass, so that no restart moves the clock.
        with contextlib.suppress(Crash):
            due_rows.process_due_rows(cluster.engine)
        cluster.now_ms += 1000
    # Attempt n makes the row due 2^n s later: 0, +2, +4, +8, +16; a dead letter after +32 s.
    assert [at - began for at in tried] == [0, 2_000, 6_000, 14_000, 30_000]


def test_message_beside_a_poisoned_message_is_folded(
    cluster: SteppedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison(
        monkeypatch,
        "pool",
        lambda message: isinstance(message, SlotsReleased) and message.trial_id == 77,
        Crash("out of memory"),
    )
    pool = f"pool#{POOL}"
    deadly = SlotsReleased(77, 1, "0", ())
    put_mail(cluster.engine, pool, "trial#77", deadly)
    put_mail(cluster.engine, pool, "trial#88", SlotsRequested(88, 1, 1, "1"), tick=1)
    for _ in range(120):
        cluster.now_ms += 1000
        cluster.tick()
    assert cluster.checker.pending_mail() == []
    assert len(dead_letters(cluster)) == 1
    assert "trial#77" in dead_letters(cluster)[0].sort
    assert cluster.checker.actor_state(pool).queued == 1


def test_unreadable_actors_do_not_delay_mail_to_readable_actors(cluster: SteppedCluster) -> None:
    cluster.submit(1)
    engine = cluster.engine
    garbled = [Put(Key(f"trial#{n}", HEAD), 1, b"not json", Expect.ABSENT) for n in range(50, 80)]
    cluster.host.rows.commit(garbled)
    for n in range(50, 80):
        put_mail(engine, f"trial#{n}", EXPERIMENT, WorkAssigned(8, False))
    put_mail(engine, "trial#1", EXPERIMENT, WorkAssigned(8, False))
    due_rows.process_due_rows(engine)
    due_rows.process_due_rows(engine)
    assert cluster.checker.actor_state("trial#1").length == 8


def test_malformed_mail_rows_do_not_delay_mail(cluster: SteppedCluster) -> None:
    cluster.submit(1)
    engine = cluster.engine
    for n in range(50, 80):
        row = Put(Key(f"trial#{n}", "M#0#x"), 1, b"{}", Expect.ABSENT, due_ms=1)
        engine.table.commit([row])
    put_mail(engine, "trial#1", EXPERIMENT, WorkAssigned(8, False))
    due_rows.process_due_rows(engine)
    assert cluster.checker.actor_state("trial#1").length == 8


@pytest.mark.parametrize("trials", [94, 95, 96, 97, 98])
def test_dead_letter_may_fill_a_commit_exactly(
    cluster: SteppedCluster, monkeypatch: pytest.MonkeyPatch, trials: int
) -> None:
    """For one of the numbers of trials, the writes of the fallback fill a commit exactly."""
    cluster.submit(trials)
    poison(
        monkeypatch,
        "experiment",
        lambda m: isinstance(m, TrialValidationReported),
        ValueError("poison"),
    )
    put_mail(cluster.engine, EXPERIMENT, "trial#1", TrialValidationReported(0, 1.0, 0.5))
    for _ in range(90):
        cluster.now_ms += 1000
        cluster.tick()
    assert cluster.checker.actor_state(EXPERIMENT).status is Status.ERROR
    assert cluster.checker.pending_mail() == []


def test_dead_letter_waits_for_the_earlier_outbox(
    cluster: SteppedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trials receive the older messages of the outbox before the end of the experiment."""
    cluster.submit(120)
    dying = CrashingTable(cluster.engine.table, 1, "after")
    with pytest.raises(Crash):
        Engine(dying, cluster.engine.clock, UNHURRIED).execute_command(EXPERIMENT, PauseRequested())
    key = put_mail(cluster.engine, EXPERIMENT, "trial#1", TrialValidationReported(0, 1.0, 0.5))
    row = cluster.engine.table.get(key)
    assert row is not None
    cluster.engine.dead_letter_mail(mailbox.read_mail(row))
    for _ in range(30):
        cluster.now_ms += 1000
        cluster.tick()
    statuses = [
        fields["status"]
        for name, fields in cluster.checker.folded_messages("trial#9")
        if "status" in fields
    ]
    assert statuses == ["PAUSED", "STOPPING_ERROR"]
    assert cluster.checker.actor_state(EXPERIMENT).status is Status.ERROR
