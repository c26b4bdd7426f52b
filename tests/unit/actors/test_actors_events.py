"""Events of experiments and trials that webhooks announce, and the routes that select webhooks."""

import json
from dataclasses import replace
from typing import Any

import pytest

from control_plane.actors.event_routes import (
    DAMAGED,
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
from control_plane.actors.experiment.best_events import BEST_INTERVAL_MS
from control_plane.actors.experiment.events import ALERTS_MAX, EVENTS_OF_STEP_MAX, raise_log_event
from control_plane.actors.messages.experiment import (
    CancelRequested,
    ExperimentSubmitted,
    PauseRequested,
    TrialEnded,
    TrialMetered,
    TrialValidationReported,
)
from control_plane.actors.messages.experiment_events import (
    DeadlineNear,
    TrialAlerted,
    TrialLogMatched,
    WebhooksChanged,
)
from control_plane.actors.messages.experiment_use import TrialUsedLittle
from control_plane.actors.messages.pool import BudgetChecked, PoolConfigured, PoolSettings
from control_plane.actors.messages.trial_alerts import AlertReported
from control_plane.actors.records import Status
from control_plane.actors.step import ObservedRow, StepContext
from tests.unit.actors.actor_harness import START_MS, ActorHarness
from tests.unit.actors.sample_messages import experiment_submitted, random_plan
from tests.unit.actors.test_actors_trial import running_trial

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
    assert actor.reasons.count(DAMAGED) == 1


def test_damaged_route_silences_only_its_webhook() -> None:
    actor = ActorHarness("experiment#1")
    stored = json.loads(encode_routes((STATES, TRIALS)))
    stored["routes"].insert(0, {"webhook": 9, "triggers": "damaged"})
    actor.rows[ROUTES] = ObservedRow(1, json.dumps(stored).encode())
    actor.deliver(replace(experiment_submitted(random_plan(2)), raises_events=True))
    assert [list(event.pending) for event in events(actor)] == [[1]]
    assert actor.reasons.count(DAMAGED) == 1


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
    assert decode_routes(json.dumps(stored).encode()) == (routes, 0)


def test_submission_without_webhooks_is_stored_as_before() -> None:
    submitted = ExperimentSubmitted.__dataclass_fields__
    assert submitted["raises_events"].default is False
    assert submitted["webhooks"].default is None


def metric_route(*triggers: Trigger) -> Route:
    return Route(5, "metrics", triggers)


BEST = Trigger(EventType.BEST_VALIDATION)
LOW = Trigger(EventType.METRIC_THRESHOLD_EXCEEDED, metric="loss", below=0.5)


def test_each_new_best_validation_is_announced() -> None:
    actor = experiment(metric_route(BEST))
    for number, metric in ((0, 0.9), (0, 0.95), (1, 0.8), (1, None), (0, 0.8)):
        actor.now_ms += BEST_INTERVAL_MS
        actor.deliver(TrialValidationReported(number, 1.0, metric))
    found = [event.data["validation"] for event in events(actor)]
    assert [shown["metrics"] for shown in found] == [{"loss": 0.9}, {"loss": 0.8}]
    assert found[1]["trial_id"] == actor.state.best_trial


def test_limit_of_a_metric_is_announced_once() -> None:
    actor = experiment(metric_route(LOW, replace(LOW, below=0.1)))
    for metric in (0.6, 0.4, 0.3, 0.05, 0.01):
        actor.deliver(TrialValidationReported(0, 1.0, metric))
    # 0.4 is the first metric below 0.5, and 0.05 the first below 0.1.
    assert [event.condition["values"] for event in events(actor)] == [{"loss": 0.4}, {"loss": 0.05}]


def test_many_limits_are_announced_over_several_validations() -> None:
    limits = [replace(LOW, below=0.5 + number / 100) for number in range(20)]
    actor = experiment(metric_route(*limits))
    actor.deliver(TrialValidationReported(0, 1.0, 0.1))
    assert len(events(actor)) == EVENTS_OF_STEP_MAX
    actor.deliver(TrialValidationReported(0, 2.0, 0.2))
    assert len(events(actor)) == 20


def test_limit_of_another_metric_of_the_best_validation_is_announced() -> None:
    actor = experiment(metric_route(replace(LOW, metric="error", below=0.5)))
    actor.deliver(TrialValidationReported(0, 1.0, 0.9, values={"error": 0.4}))
    (event,) = events(actor)
    assert event.data["validation"]["metrics"] == {"error": 0.4, "loss": 0.9}


def test_validation_reads_no_row_without_webhooks_for_metrics() -> None:
    actor = experiment(STATES)
    actor.rows.pop(ROUTES)
    actor.rows[ROUTES] = ObservedRow(2, encode_routes([metric_route(BEST)]))
    actor.deliver(TrialValidationReported(0, 1.0, 0.9))
    assert len(events(actor)) == 1
    actor.deliver(WebhooksChanged())
    actor.deliver(TrialValidationReported(0, 2.0, 0.8))
    assert [event.type for event in events(actor)[1:]] == ["BEST_VALIDATION"]


def test_alert_of_training_code_is_announced() -> None:
    actor = experiment(Route(1, "alerts", (Trigger(EventType.CUSTOM, levels=("warn",)),)))
    actor.deliver(TrialAlerted(0, "slow data", "a batch takes 3 s", "warn"))
    actor.deliver(TrialAlerted(0, "a detail", "", "debug"))
    actor.deliver(TrialAlerted(99, "of no trial", "", "warn"))
    (event,) = events(actor)
    assert (event.title, event.text) == ("slow data", "a batch takes 3 s")
    assert event.data["alert"]["level"] == "warn"


def test_alert_without_title_names_the_trial() -> None:
    actor = experiment(Route(1, "alerts", (Trigger(EventType.CUSTOM),)))
    actor.deliver(TrialAlerted(0, "", "text", "info"))
    (event,) = events(actor)
    assert event.title.endswith(" of experiment 1 (digits) raised an alert")


def test_alerts_of_an_experiment_are_limited() -> None:
    actor = experiment(Route(1, "alerts", (Trigger(EventType.CUSTOM),)))
    actor.state = replace(actor.state, alerts=ALERTS_MAX - 1)
    for _ in range(3):
        actor.deliver(TrialAlerted(0, "again", "", "info"))
    assert len(events(actor)) == 1


@pytest.mark.parametrize("is_ended", [False, True])
def test_low_use_of_a_trial_is_announced(is_ended: bool) -> None:
    actor = experiment(Route(1, "use", (Trigger(EventType.LOW_USE),)))
    actor.deliver(TrialUsedLittle(0, "its slots computed 2 %", is_ended))
    actor.deliver(TrialUsedLittle(99, "of no trial", False))
    (event,) = events(actor)
    outcome = "is ended, because it uses" if is_ended else "uses"
    assert event.title.endswith(f" of experiment 1 (digits) {outcome} little of its slots")
    assert (event.type, event.text) == ("LOW_USE", "its slots computed 2 %")
    assert event.data["low_use"]["is_ended"] is is_ended


def test_low_use_raises_no_event_without_webhooks() -> None:
    actor = experiment(Route(1, "alerts", (Trigger(EventType.CUSTOM),)))
    actor.deliver(TrialUsedLittle(0, "its slots computed 2 %", False))
    assert events(actor) == []


def test_alert_goes_from_the_trial_to_the_experiment() -> None:
    trial = running_trial()
    trial.deliver(AlertReported(1, "slow", "", "warn"))
    assert trial.messages_to("experiment#1") == [TrialAlerted(3, "slow", "", "warn")]
    # An alert of another run is late.
    trial.deliver(AlertReported(7, "slow", "", "warn"))
    assert trial.messages_to("experiment#1") == []


RISK = Route(1, "risk", (Trigger(EventType.LIMIT_AT_RISK),))
HOUR_MS = 3_600_000


def test_deadline_at_risk_is_announced_after_nine_tenths_of_the_time() -> None:
    settings = replace(
        experiment_submitted(random_plan(2)).settings, deadline_ms=START_MS + HOUR_MS
    )
    actor = experiment(RISK, settings=settings)
    (timer,) = actor.timers
    assert (timer.due_ms, timer.message) == (START_MS + HOUR_MS * 9 // 10, DeadlineNear(0))
    actor.deliver(DeadlineNear(1))
    assert events(actor) == []
    actor.deliver(DeadlineNear(0))
    (event,) = events(actor)
    assert event.data["limit"] == {"name": "deadline"}
    assert event.text == "nine tenths of the time until the deadline are over; 0% is done"


def test_deadline_of_an_ended_experiment_is_not_announced() -> None:
    actor = experiment(RISK)
    end_trials(actor)
    actor.deliver(DeadlineNear(0))
    assert events(actor) == []


def test_reached_cost_limit_is_announced() -> None:
    settings = replace(experiment_submitted(random_plan(2)).settings, max_cost=1.0)
    actor = experiment(RISK, STATES, settings=settings)
    # 2 dollars are spent.
    actor.deliver(TrialMetered(0, 1, 2_000_000, 0, START_MS, True))
    assert [event.type for event in events(actor)] == [
        "EXPERIMENT_STATE_CHANGE",
        "LIMIT_AT_RISK",
        "EXPERIMENT_STATE_CHANGE",
    ]
    assert events(actor)[1].data["limit"] == {"name": "max_cost"}


def raised_log_event(actor: ActorHarness, **options: Any) -> None:
    """Raise an event for a line of the log, in a step of the experiment."""
    context = StepContext(actor.address, actor.now_ms, actor)
    raise_log_event(actor.state, 1, "oom", "CUDA oom", context, **options)
    for row in context.rows:
        actor.rows[row.partition, row.sort] = ObservedRow(1, row.body or b"")


def test_log_line_is_announced_to_webhooks_with_the_pattern() -> None:
    matching = Route(1, "log", (Trigger(EventType.TASK_LOG, pattern="oom"),))
    other = Route(2, "other", (Trigger(EventType.TASK_LOG, pattern="nan"),))
    actor = experiment(matching, other)
    raised_log_event(actor)
    (event,) = events(actor)
    assert list(event.pending) == [1]
    assert event.data["log"] == {"trial_id": 1, "pattern": "oom", "line": "CUDA oom"}


def test_match_of_a_trial_is_announced() -> None:
    actor = experiment(Route(1, "log", (Trigger(EventType.TASK_LOG, pattern="oom"),)))
    actor.deliver(TrialLogMatched(1, "oom", "CUDA oom"), TrialLogMatched(1, "nan", "loss nan"))
    (event,) = events(actor)
    assert event.data["log"] == {"trial_id": 1, "pattern": "oom", "line": "CUDA oom"}


def test_log_policy_names_its_webhook() -> None:
    actor = experiment(STATES, replace(TRIALS, name="named", workspace="another"))
    raised_log_event(actor, webhook_name="named")
    assert list(events(actor)[-1].pending) == [2]
    raised_log_event(actor, webhook_name="unknown")
    assert len(events(actor)) == 2


def test_log_policy_cannot_name_the_webhook_of_another_user() -> None:
    actor = experiment(replace(TRIALS, name="named", user="somebody else"))
    raised_log_event(actor, webhook_name="named")
    assert events(actor) == []


@pytest.mark.parametrize(("over", "state"), [(True, "raised"), (False, "cleared")])
def test_budget_of_a_pool_is_announced(over: bool, state: str) -> None:
    pool = ActorHarness("pool#default")
    pool.rows[ROUTES] = ObservedRow(1, encode_routes([Route(1, "a", (Trigger("ALARM"),))]))
    pool.deliver(PoolConfigured("default", PoolSettings(over_budget=not over)))
    pool.deliver(BudgetChecked(over, raises_events=True), BudgetChecked(over, raises_events=True))
    found = [row for (partition, _), row in pool.rows.items() if partition == "events#pool#default"]
    assert [decode_event(row.body).condition for row in found] == [{"state": state}]
