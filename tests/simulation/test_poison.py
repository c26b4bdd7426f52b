"""Messages that nobody can fold: they end as dead letters, and hold up nobody but their subject."""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from control_plane.actors.messages.experiment import PauseRequested, TrialValidationReported
from control_plane.actors.messages.pool import SlotsReleased, SlotsRequested
from control_plane.actors.messages.trial import ValidationReported, WorkAssigned
from control_plane.actors.records import Status
from control_plane.actors.step import StepContext
from control_plane.engine import actor_types, due_rows, mailbox
from control_plane.engine.actor_types import ActorType
from control_plane.engine.engine import Engine
from control_plane.engine.head import HEAD
from control_plane.state.table import Expect, Key, Put
from simulator.faults.table_faults import Crash, CrashingTable
from simulator.stepped.small_search import POOL, submission
from simulator.stepped.stepped_cluster import SteppedCluster
from tests.engine_timing import UNHURRIED
from tests.simulation.mailed_messages import put_mail
from tests.simulation.scenarios import hold
from tests.simulation.scripts import train_at_once

EXPERIMENT = "experiment#1"
# Ticks after all that the real senders of the same millisecond have sent.
LATER = 1_000


def poison(
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    is_poison: Callable[[Any], bool],
    error: BaseException,
) -> list[int]:
    """Make a step raise for some messages; counts how often it did."""
    healthy = actor_types.ACTOR_TYPES[kind]
    raised: list[int] = []

    def step(state: Any, message: Any, context: StepContext) -> Any:
        if is_poison(message):
            raised.append(context.now_ms)
            raise error
        return healthy.step(state, message, context)

    poisoned: Mapping[str, ActorType] = {
        **actor_types.ACTOR_TYPES,
        kind: replace(healthy, step=step),
    }
    monkeypatch.setattr(actor_types, "ACTOR_TYPES", poisoned)
    return raised


def pass_time(cluster: SteppedCluster, seconds: int) -> None:
    for _ in range(seconds):
        cluster.round()


def dead_letters(cluster: SteppedCluster) -> list[Key]:
    return [key for key in cluster.checker.rows if key.sort.startswith("D#")]


def test_a_poisoned_trial_ends_in_error_and_the_others_go_on(
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
    # Trial 2 alone has a metric under 0.6 (0.571884); the three others are done at once.
    done = {
        t.trial_id for t in cluster.checker.actor_states("trial") if t.status is Status.COMPLETED
    }
    assert done == {1, 3, 4}
    cluster.run_to_rest()
    assert cluster.checker.actor_state("trial#2").status is Status.ERROR
    # All lines of the call are one row; those before the poisoned one are folded.
    assert "ValidationReported" in cluster.checker.actor_state("trial#2").message
    assert cluster.checker.actor_state(EXPERIMENT).status is Status.COMPLETED
    assert cluster.checker.actor_state(EXPERIMENT).trials_errored == 1
    assert [key.partition for key in dead_letters(cluster)] == ["trial#2"]


def test_a_poisoned_experiment_ends_in_error_and_stops_its_trials(
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


def test_a_fold_that_kills_the_process_is_counted_and_ends_as_a_dead_letter(
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
    # 5 attempts, each counted before it was made; after the fifth the message is buried.
    assert len(died) == mailbox.ATTEMPTS_MAX
    assert [key.partition for key in dead_letters(cluster)] == ["trial#1"]
    assert cluster.checker.actor_state("trial#1").status is Status.ERROR
    assert cluster.checker.pending_mail() == []


def test_attempts_come_after_2_4_8_and_16_seconds(
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
    # Attempt n makes it due 2^n s later: 0, +2, +4, +8, +16; buried 32 s after the last.
    assert [at - began for at in tried] == [0, 2_000, 6_000, 14_000, 30_000]


def test_a_message_beside_the_deadly_one_is_folded_and_not_buried(
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


def test_one_actor_that_cannot_be_read_does_not_hold_up_the_others(cluster: SteppedCluster) -> None:
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


def test_a_row_that_is_no_mail_does_not_hold_up_the_others(cluster: SteppedCluster) -> None:
    cluster.submit(1)
    engine = cluster.engine
    for n in range(50, 80):
        row = Put(Key(f"trial#{n}", "M#0#x"), 1, b"{}", Expect.ABSENT, due_ms=1)
        engine.table.commit([row])
    put_mail(engine, "trial#1", EXPERIMENT, WorkAssigned(8, False))
    due_rows.process_due_rows(engine)
    assert cluster.checker.actor_state("trial#1").length == 8


@pytest.mark.parametrize("trials", [94, 95, 96, 97, 98])
def test_a_dead_letter_may_reach_as_many_trials_as_a_commit_holds(
    cluster: SteppedCluster, monkeypatch: pytest.MonkeyPatch, trials: int
) -> None:
    """At some number of trials the writes of the fallback alone fill a commit exactly."""
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


def test_a_dead_letter_waits_for_the_outbox_before_it(
    cluster: SteppedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outbox holds older messages: a trial must not get them after the end."""
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
    told = [
        fields["status"]
        for name, fields in cluster.checker.folded_messages("trial#9")
        if "status" in fields
    ]
    assert told == ["PAUSED", "STOPPING_ERROR"]
    assert cluster.checker.actor_state(EXPERIMENT).status is Status.ERROR
