"""Events of best validations, of which at most one is raised in an interval."""

from dataclasses import replace
from typing import Any

from control_plane.actors.event_routes import ROUTES, EventType, Route, Trigger, encode_routes
from control_plane.actors.experiment.best_events import BEST_INTERVAL_MS
from control_plane.actors.messages.experiment import (
    CancelRequested,
    DeleteRequested,
    TrialEnded,
    TrialMetricsDiscarded,
    TrialValidationReported,
)
from control_plane.actors.messages.experiment_events import BestValidationDue
from control_plane.actors.records import Status
from control_plane.actors.step import ObservedRow
from tests.unit.actors.actor_harness import START_MS, ActorHarness
from tests.unit.actors.test_actors_events import end_trials, events, experiment

BEST = Route(1, "best", (Trigger(EventType.BEST_VALIDATION),))
STATES = Route(2, "states", (Trigger(EventType.EXPERIMENT_STATE_CHANGE),))


def validate(actor: ActorHarness, *metrics: float, units: float = 1.0) -> None:
    """Deliver validations of the first trial."""
    for metric in metrics:
        actor.deliver(TrialValidationReported(0, units, metric))


def best_metrics(actor: ActorHarness) -> list[float]:
    """Return the announced best metrics in order."""
    return [
        event.data["validation"]["metrics"]["loss"]
        for event in events(actor)
        if event.type == EventType.BEST_VALIDATION
    ]


def timers(actor: ActorHarness) -> list[int]:
    """Return the due times of the timers of best validations."""
    return [timer.due_ms for timer in actor.timers if timer.message == BestValidationDue()]


def test_newest_best_is_announced_at_the_end_of_the_interval() -> None:
    actor = experiment(BEST)
    validate(actor, 0.9)
    actor.now_ms += 1
    validate(actor, 0.8)
    validate(actor, 0.7, units=3.0)
    assert best_metrics(actor) == [0.9]
    assert timers(actor) == [START_MS + BEST_INTERVAL_MS]
    actor.now_ms = START_MS + BEST_INTERVAL_MS
    actor.deliver(BestValidationDue())
    assert best_metrics(actor) == [0.9, 0.7]
    assert events(actor)[-1].data["validation"]["units"] == 3.0
    # The next interval begins with this event.
    validate(actor, 0.6)
    assert best_metrics(actor) == [0.9, 0.7]
    assert timers(actor)[-1] == START_MS + 2 * BEST_INTERVAL_MS


def test_time_from_a_clock_ahead_delays_no_announcement() -> None:
    actor = experiment(BEST)
    actor.now_ms += 86_400_000
    validate(actor, 0.9)
    actor.now_ms = START_MS
    validate(actor, 0.8)
    assert best_metrics(actor) == [0.9, 0.8]
    assert timers(actor) == []


def test_best_after_the_interval_is_announced_at_once() -> None:
    actor = experiment(BEST)
    validate(actor, 0.9)
    actor.now_ms += BEST_INTERVAL_MS
    validate(actor, 0.8)
    assert best_metrics(actor) == [0.9, 0.8]
    assert timers(actor) == []


def test_best_of_an_ended_experiment_is_announced_before_its_end() -> None:
    actor = experiment(BEST, STATES)
    validate(actor, 0.9, 0.8)
    end_trials(actor)
    assert best_metrics(actor) == [0.9, 0.8]
    assert [event.type for event in events(actor)][-2:] == [
        "BEST_VALIDATION",
        "EXPERIMENT_STATE_CHANGE",
    ]
    # The timer comes too late.
    actor.now_ms += BEST_INTERVAL_MS
    actor.deliver(BestValidationDue())
    assert best_metrics(actor) == [0.9, 0.8]


def test_best_of_a_canceled_experiment_is_best_metrics() -> None:
    actor = experiment(BEST)
    validate(actor, 0.9, 0.8)
    actor.deliver(CancelRequested())
    assert best_metrics(actor) == [0.9]
    end_trials(actor, Status.CANCELED)
    assert best_metrics(actor) == [0.9, 0.8]


def test_repeated_and_early_timers_announce_nothing() -> None:
    actor = experiment(BEST)
    actor.deliver(BestValidationDue())
    validate(actor, 0.9, 0.8)
    actor.now_ms += BEST_INTERVAL_MS - 1
    actor.deliver(BestValidationDue())
    assert best_metrics(actor) == [0.9]
    actor.now_ms += 1
    actor.deliver(BestValidationDue())
    actor.deliver(BestValidationDue())
    assert best_metrics(actor) == [0.9, 0.8]


def test_discarded_best_is_not_best_metrics() -> None:
    actor = experiment(BEST)
    actor.deliver(TrialValidationReported(1, 1.0, 0.9))
    validate(actor, 0.8)
    actor.deliver(TrialMetricsDiscarded(0, None))
    actor.now_ms += BEST_INTERVAL_MS
    actor.deliver(BestValidationDue())
    assert best_metrics(actor) == [0.9]
    actor.deliver(TrialValidationReported(0, 1.0, 0.7))
    validate(actor, 0.6)
    actor.deliver(TrialMetricsDiscarded(0, 0.65))
    actor.now_ms += BEST_INTERVAL_MS
    actor.deliver(BestValidationDue())
    # The length of the remaining validation is not known.
    assert best_metrics(actor) == [0.9, 0.7, 0.65]
    assert "units" not in events(actor)[-1].data["validation"]


def test_changed_triggers_compare_limits_again() -> None:
    low = Trigger(EventType.METRIC_THRESHOLD_EXCEEDED, metric="loss", below=0.5)
    route = Route(5, "metrics", (low,))
    actor = experiment(route)
    for edits in range(5):
        actor.rows[ROUTES] = ObservedRow(2 + edits, encode_routes((replace(route, edits=edits),)))
        validate(actor, 0.4, 0.3)
    assert len(events(actor)) == 5
    # Limits of former triggers are forgotten.
    assert actor.state.crossed_limits == ("5/0/4",)


def test_thousand_validations_raise_a_bounded_number_of_events() -> None:
    actor = experiment(BEST)
    for number in range(1_000):
        actor.now_ms += 100
        while timers(actor) and timers(actor)[-1] <= actor.now_ms:
            due: Any = actor.timers.pop()
            actor.deliver(due.message)
        validate(actor, 1.0 - number / 1_000)
    end_trials(actor)
    # 100 s have 3 intervals after the first event, and the end announces the last best.
    assert len(best_metrics(actor)) == 1 + 3 + 1
    assert best_metrics(actor)[-1] == 1.0 - 999 / 1_000


def test_deleted_experiment_announces_nothing() -> None:
    actor = experiment(BEST)
    validate(actor, 0.9)
    for number in (0, 1):
        actor.deliver(TrialEnded(number, Status.COMPLETED, "", ""))
    actor.deliver(DeleteRequested())
    actor.deliver(BestValidationDue())
    assert best_metrics(actor) == [0.9]
