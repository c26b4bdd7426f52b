"""Events of experiments and trials that webhooks announce, and the routes that select webhooks."""

import json
from dataclasses import replace
from typing import Any

import pytest

from control_plane.actors.event_routes import (
    ROUTES,
    EventCondition,
    EventScope,
    EventType,
    Route,
    Trigger,
    WebhookChoice,
    decode_routes,
    encode_routes,
    matching_webhooks,
)
from control_plane.actors.events import TEXT_CHARACTERS_MAX, EventRow, decode_event
from control_plane.actors.messages.experiment import (
    CancelRequested,
    ExperimentSubmitted,
    PauseRequested,
    TrialEnded,
)
from control_plane.actors.records import Status
from control_plane.actors.step import ObservedRow
from tests.unit.actors.actor_harness import START_MS, ActorHarness
from tests.unit.actors.sample_messages import experiment_submitted, random_plan

STATES = Route(1, "states", (Trigger(EventType.EXPERIMENT_STATE_CHANGE),))
TRIALS = Route(2, "trials", (Trigger(EventType.TRIAL_STATE_CHANGE),))


def experiment(*routes: Route, **fields: Any) -> ActorHarness:
    """Create a search with two trials, which webhooks may announce."""
    actor = ActorHarness("experiment#1")
    if routes:
        actor.rows[ROUTES] = ObservedRow(1, encode_routes(routes))
    submitted = experiment_submitted(random_plan(2))
    actor.deliver(replace(submitted, **{"raises_events": True, **fields}))
    return actor


def events(actor: ActorHarness) -> list[EventRow]:
    """Return the events of the actor in order."""
    return [
        decode_event(row.body)
        for (partition, _), row in sorted(actor.rows.items())
        if partition == "events#experiment#1"
    ]


def end_trials(actor: ActorHarness, status: Status = Status.COMPLETED, text: str = "") -> None:
    for number in (0, 1):
        early = "" if status is Status.COMPLETED else "ERRORED"
        actor.deliver(TrialEnded(number, status, early, text))


def states(actor: ActorHarness) -> list[tuple[str, str]]:
    return [(event.type, event.condition["state"]) for event in events(actor)]


def test_each_status_is_announced_once_and_in_order() -> None:
    actor = experiment(STATES)
    actor.deliver(PauseRequested())
    actor.deliver(PauseRequested())
    actor.deliver(CancelRequested())
    end_trials(actor, Status.CANCELED)
    found = events(actor)
    # STOPPING_CANCELED is not announced.
    assert [event.condition["state"] for event in found] == ["ACTIVE", "PAUSED", "CANCELED"]
    assert [event.number for event in found] == [1, 2, 3]
    assert len({event.id for event in found}) == 3
    assert all(event.subject == "experiment#1" for event in found)
    assert all(list(event.pending) == [1] for event in found)


def test_event_describes_the_experiment() -> None:
    actor = experiment(STATES)
    (event,) = events(actor)
    assert event.title == "experiment 1 (digits) is ACTIVE"
    assert event.time_ms == START_MS
    shown = event.data["experiment"]
    expected = {"id": 1, "state": "ACTIVE", "name": "digits", "duration": 0}
    assert {name: shown[name] for name in expected} == expected
    assert shown["workspace"] == "Uncategorized"


def test_nothing_is_written_without_webhooks() -> None:
    actor = experiment()
    end_trials(actor)
    assert events(actor) == []
    assert actor.state.events_raised == 0


def test_experiment_of_an_older_release_raises_no_event() -> None:
    actor = experiment(STATES, raises_events=False)
    end_trials(actor)
    assert events(actor) == []


def test_end_of_trials_is_announced_before_the_end_of_the_experiment() -> None:
    actor = experiment(STATES, TRIALS)
    end_trials(actor)
    assert states(actor) == [
        ("EXPERIMENT_STATE_CHANGE", "ACTIVE"),
        ("TRIAL_STATE_CHANGE", "COMPLETED"),
        ("TRIAL_STATE_CHANGE", "COMPLETED"),
        ("EXPERIMENT_STATE_CHANGE", "COMPLETED"),
    ]
    assert events(actor)[1].data["trial"]["id"] == actor.state.ids.first - 2


def test_repeated_end_of_a_trial_is_announced_once() -> None:
    actor = experiment(TRIALS)
    for _ in range(2):
        actor.deliver(TrialEnded(0, Status.COMPLETED, ""))
    assert len(events(actor)) == 1


def test_message_of_a_failed_trial_is_the_text_of_the_events() -> None:
    actor = experiment(STATES, TRIALS)
    end_trials(actor, Status.ERROR, "x" * (TEXT_CHARACTERS_MAX + 1))
    texts = {event.text for event in events(actor)[1:]}
    assert texts == {"x" * (TEXT_CHARACTERS_MAX - 1) + "…"}


def test_dead_letter_announces_the_error() -> None:
    actor = experiment(STATES)
    actor.deliver_dead_letter(PauseRequested())
    end_trials(actor, Status.ERROR)
    assert states(actor)[-1] == ("EXPERIMENT_STATE_CHANGE", "ERROR")


@pytest.mark.parametrize("body", [b"{", b"[]", b"{}", b'{"routes": [1]}', b'{"routes": [{}]}'])
def test_damaged_routes_stop_no_experiment(body: bytes) -> None:
    actor = ActorHarness("experiment#1")
    actor.rows[ROUTES] = ObservedRow(1, body)
    actor.deliver(replace(experiment_submitted(random_plan(2)), raises_events=True))
    assert (actor.state.status, events(actor)) == (Status.ACTIVE, [])


def test_configuration_chooses_webhooks() -> None:
    specific = replace(STATES, webhook=3, name="mine", is_specific=True)
    choices = {
        WebhookChoice(): [1],
        WebhookChoice(ids=(3,)): [1, 3],
        WebhookChoice(names=("mine",)): [1, 3],
        WebhookChoice(names=("other",)): [1],
    }
    for choice, webhooks in choices.items():
        (event,) = events(experiment(STATES, specific, webhooks=choice))
        assert list(event.pending) == webhooks
    assert events(experiment(STATES, specific, webhooks=WebhookChoice((3,), exclude=True))) == []


SCOPE = EventScope("w", "p", ("a", "b"), "ann", 7)


@pytest.mark.parametrize(
    ("fields", "matches"),
    [
        ({}, True),
        ({"workspace": "w", "project": "p", "user": "ann"}, True),
        ({"workspace": "v"}, False),
        ({"project": "q"}, False),
        ({"user": "bob"}, False),
        ({"labels": ("b", "c")}, True),
        ({"labels": ("c",)}, False),
        ({"experiments": (6, 7)}, True),
        ({"experiments": (6,)}, False),
    ],
)
def test_filters_select_by_the_scope(fields: dict[str, Any], matches: bool) -> None:
    route = replace(STATES, **fields)
    condition = EventCondition(state="ERROR")
    type_ = EventType.EXPERIMENT_STATE_CHANGE
    assert matching_webhooks((route,), type_, condition, SCOPE) == ((1,) if matches else ())
    # An event without an experiment matches no filter of experiments.
    expected = () if fields else (1,)
    assert matching_webhooks((route,), type_, condition, EventScope()) == expected


@pytest.mark.parametrize(
    ("trigger", "condition", "fires"),
    [
        (Trigger("EXPERIMENT_STATE_CHANGE", ("ERROR",)), EventCondition("ERROR"), True),
        (Trigger("EXPERIMENT_STATE_CHANGE", ("ERROR",)), EventCondition("PAUSED"), False),
        (Trigger("CUSTOM", levels=("warn", "error")), EventCondition(level="warn"), True),
        (Trigger("CUSTOM", levels=("error",)), EventCondition(level="info"), False),
        (Trigger("TASK_LOG", pattern="oom"), EventCondition(pattern="oom"), True),
        (Trigger("TASK_LOG", pattern="oom"), EventCondition(pattern="nan"), False),
        (Trigger("FUTURE"), EventCondition(), False),
    ],
)
def test_triggers_compare_the_condition(
    trigger: Trigger, condition: EventCondition, fires: bool
) -> None:
    type_ = EventType(trigger.type) if trigger.type != "FUTURE" else EventType.TEST
    routes = (Route(1, "hook", (Trigger("ALARM"), trigger)),)
    assert matching_webhooks(routes, type_, condition, SCOPE) == ((1,) if fires else ())


@pytest.mark.parametrize(
    ("value", "fires"),
    [(0.5, False), (0.51, True), (0.1, False), (0.09, True), (float("nan"), False)],
)
def test_threshold_fires_beyond_its_limits(value: float, fires: bool) -> None:
    trigger = Trigger("METRIC_THRESHOLD_EXCEEDED", metric="loss", above=0.5, below=0.1)
    routes = (Route(1, "hook", (trigger,)),)
    for values, expected in (({"loss": value}, fires), ({"other": value}, False)):
        found = matching_webhooks(
            routes, EventType.METRIC_THRESHOLD_EXCEEDED, EventCondition(values=values), SCOPE
        )
        assert found == ((1,) if expected else ())


def test_routes_of_a_newer_release_are_read() -> None:
    routes = (replace(STATES, labels=("a",), workspace="w"), TRIALS)
    stored = json.loads(encode_routes(routes))
    stored["new"] = stored["routes"][0]["new"] = stored["routes"][0]["triggers"][0]["new"] = [1]
    assert decode_routes(json.dumps(stored).encode()) == routes


def test_submission_without_webhooks_is_stored_as_before() -> None:
    submitted = ExperimentSubmitted.__dataclass_fields__
    assert submitted["raises_events"].default is False
    assert submitted["webhooks"].default is None
