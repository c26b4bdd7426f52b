"""Rows and messages of releases before the continuation of experiments can still be decoded."""

import json
from typing import Any

from pydantic import TypeAdapter

from control_plane.actors import era_rules as rules
from control_plane.actors.experiment.listing import Figures, decode_listing
from control_plane.actors.experiment.state import Definition, ExperimentState, Settings
from control_plane.actors.experiment.trial_summaries import Summaries
from control_plane.actors.job_row import JobRow
from control_plane.actors.messages.experiment import (
    CancelRequested,
    ContinueRequested,
    ExperimentSubmitted,
    TrialEnded,
)
from control_plane.actors.messages.pool import SlotsRequested
from control_plane.actors.messages.trial import ExperimentStatusChanged, TrialCreated
from control_plane.actors.pool import agent_slots, groups
from control_plane.actors.pool.agent_slots import AgentSlots, AllocationPart
from control_plane.actors.records import Availability, Retention, Status
from control_plane.actors.trial.state import TrialState
from control_plane.engine.actor_types import ActorType, actor_type_at
from control_plane.scheduling.model import Placement
from tests.unit.actors.actor_harness import ActorHarness
from tests.unit.actors.sample_messages import experiment_submitted, random_plan, trial_created

EXPERIMENT, TRIAL, POOL = (
    actor_type_at("experiment#1"),
    actor_type_at("trial#4"),
    actor_type_at("pool#default"),
)


def without_fields(body: bytes, *names: str) -> bytes:
    """Return the JSON of a record without fields that older releases did not write."""
    fields = json.loads(body)
    for name in names:
        del fields[name]
    return json.dumps(fields).encode()


def older_settings(body: bytes) -> bytes:
    fields = json.loads(body)
    del fields["settings"]["terminate_ms"]
    return json.dumps(fields).encode()


def with_defaults(state: object) -> bytes:
    """Return the JSON of a state as older releases wrote it, with all defaults."""
    return TypeAdapter[object](type(state)).dump_json(state, by_alias=True)


def test_state_is_stored_without_defaults() -> None:
    actor = ActorHarness("trial#4")
    actor.deliver(trial_created())
    body = TRIAL.encode_state(actor.state)
    assert len(body) < len(with_defaults(actor.state)) / 1.5
    assert TRIAL.decode_state(body) == TRIAL.decode_state(with_defaults(actor.state))
    assert "life" not in json.loads(body)


def test_experiment_of_an_older_release_is_decoded() -> None:
    actor = ActorHarness("experiment#1")
    actor.deliver(experiment_submitted(random_plan(2)))
    body = with_defaults(actor.state)
    loaded = EXPERIMENT.decode_state(without_fields(body, "life", "archived", "generation"))
    assert isinstance(loaded, ExperimentState)
    assert loaded == actor.state
    definition = older_settings(
        without_fields(actor.parts["definition"], "retention", "warm_start", "rules")
    )
    decoded = EXPERIMENT.decode_part("definition", definition)
    assert isinstance(decoded, Definition)
    assert (decoded.rules, decoded.retention) == (rules.LENGTH_ERA, Retention(0, 1, 1))


def test_summaries_of_an_older_release_are_continued() -> None:
    actor = ActorHarness("experiment#1")
    actor.deliver(experiment_submitted(random_plan(2)))
    actor.deliver(CancelRequested())
    for number in range(2):
        actor.deliver(TrialEnded(number, Status.CANCELED, "USER_CANCELED"))
    fields = json.loads(actor.parts["trials/0"])
    fields["trials"] = [summary[:4] for summary in fields["trials"]]
    actor.parts["trials/0"] = json.dumps(fields).encode()
    assert isinstance(actor.part("trials/0"), Summaries)
    actor.deliver(ContinueRequested())
    assert actor.state.trials_open == 2


def test_settings_equal_the_definition_until_changed() -> None:
    actor = ActorHarness("experiment#1")
    actor.deliver(experiment_submitted(random_plan(2)))
    assert actor.part("settings") is None
    assert EXPERIMENT.decode_part(
        "settings", EXPERIMENT.encode_part("settings", Settings("", (), 4, Retention()))
    ) == Settings("", (), 4, Retention(0, 1, 1))


def test_trial_of_an_older_release_is_decoded() -> None:
    actor = ActorHarness("trial#4")
    actor.deliver(trial_created())
    body = older_settings(with_defaults(actor.state))
    loaded = TRIAL.decode_state(without_fields(body, "life", "killed", "deleted"))
    assert isinstance(loaded, TrialState)
    assert loaded == actor.state


def test_messages_of_an_older_release_are_decoded() -> None:
    status = {"status": "PAUSED"}
    assert TRIAL.decode_message("ExperimentStatusChanged", status) == ExperimentStatusChanged(
        Status.PAUSED, forced=False
    )
    ended = {"number": 0, "status": "ERROR", "early_exit": "ERRORED", "message": "m"}
    assert EXPERIMENT.decode_message("TrialEnded", ended) == TrialEnded(
        0, Status.ERROR, "ERRORED", "m", run_generation=0
    )
    asked = {"trial_id": 4, "epoch": 1, "slots": 2, "ticket": "t"}
    assert POOL.decode_message("SlotsRequested", asked) == SlotsRequested(4, 1, 2, "t", group=0)


def all_fields(actor_type: ActorType, message: object) -> dict[str, Any]:
    """Return the stored fields of a message, defaults included."""
    name, body = actor_type.encode_message(message)
    fields = actor_type.encode_message_with_defaults(name, json.loads(body))
    found: dict[str, Any] = json.loads(fields)
    return found


def test_submissions_and_creations_of_an_older_release_are_decoded() -> None:
    message = experiment_submitted(random_plan(2))
    fields = all_fields(EXPERIMENT, message)
    for name in ("retention", "warm_start", "rules"):
        del fields[name]
    assert EXPERIMENT.decode_message("ExperimentSubmitted", fields) == message
    assert isinstance(message, ExperimentSubmitted)
    first = trial_created()
    fields = all_fields(TRIAL, first)
    del fields["life"]
    assert TRIAL.decode_message("TrialCreated", fields) == first
    assert isinstance(first, TrialCreated)


def test_values_of_a_newer_version_are_ignored_in_compact_records() -> None:
    settings = {"weight": 2.0, "from_newer": 1}
    group = groups.decode_group([[1, 2, 3, 0, None, None, None, None, 9], {"4": 1}, settings])
    assert group == groups.Group(JobRow(weight=2.0), True, {4: 1}, 2, 3)
    part = [[0], 7, 1, True, 1, [["a", 1], ["b", 1]], "newer"]
    value = [3, [0, 1], {"5.1": part}, [True, False, [1]], "gpu", 2, "new"]
    agent = agent_slots._decode_agent(value)
    assert agent == AgentSlots(
        3,
        (0, 1),
        {"5.1": AllocationPart((0,), 7, 1, True, 1, (Placement("a", 1), Placement("b", 1)))},
        Availability(disabled=(1,)),
        "gpu",
        2,
    )
    row = {"state": "COMPLETED", "user": "ada", "figures": [0.5, 1.0, 3, "newer"]}
    assert decode_listing(json.dumps(row).encode()).figures == Figures(0.5, 1.0, 3)
