"""What was stored and mailed before an experiment could be continued still loads."""

import json

from control_plane.actors import rules
from control_plane.actors.experiment_messages import (
    CancelRequested,
    ContinueRequested,
    ExperimentSubmitted,
    TrialEnded,
)
from control_plane.actors.experiment_state import Definition, ExperimentState, Settings
from control_plane.actors.experiment_summaries import Summaries
from control_plane.actors.pool_messages import SlotsRequested
from control_plane.actors.records import Retention, Status
from control_plane.actors.trial_messages import ExperimentStatusChanged, TrialCreated
from control_plane.actors.trial_state import TrialState
from control_plane.dispatch.kinds import kind_at
from tests.unit.actors.desk import Desk
from tests.unit.actors.samples import created, random_plan, submitted

EXPERIMENT, TRIAL, POOL = kind_at("experiment#1"), kind_at("trial#4"), kind_at("pool#default")


def without(body: bytes, *names: str) -> bytes:
    """The JSON of a record as older code wrote it."""
    fields = json.loads(body)
    for name in names:
        del fields[name]
    return json.dumps(fields).encode()


def older_settings(body: bytes) -> bytes:
    fields = json.loads(body)
    del fields["settings"]["terminate_ms"]
    return json.dumps(fields).encode()


def test_an_experiment_of_before() -> None:
    desk = Desk("experiment#1")
    desk.tell(submitted(random_plan(2)))
    body = EXPERIMENT.encode_state(desk.state)
    loaded = EXPERIMENT.decode_state(without(body, "life", "archived", "generation"))
    assert isinstance(loaded, ExperimentState)
    assert loaded == desk.state
    definition = older_settings(
        without(desk.parts["definition"], "retention", "warm_start", "rules")
    )
    found = EXPERIMENT.decode_part("definition", definition)
    assert isinstance(found, Definition)
    assert (found.rules, found.retention) == (rules.LENGTH_ERA, Retention(0, 1, 1))


def test_summaries_of_before_go_on_too() -> None:
    desk = Desk("experiment#1")
    desk.tell(submitted(random_plan(2)))
    desk.tell(CancelRequested())
    for number in range(2):
        desk.tell(TrialEnded(number, Status.CANCELED, "USER_CANCELED"))
    fields = json.loads(desk.parts["trials/0"])
    fields["trials"] = [summary[:4] for summary in fields["trials"]]
    desk.parts["trials/0"] = json.dumps(fields).encode()
    assert isinstance(desk.part("trials/0"), Summaries)
    desk.tell(ContinueRequested())
    assert desk.state.trials_open == 2


def test_settings_are_those_of_the_definition_until_they_are_changed() -> None:
    desk = Desk("experiment#1")
    desk.tell(submitted(random_plan(2)))
    assert desk.part("settings") is None
    assert EXPERIMENT.decode_part(
        "settings", EXPERIMENT.encode_part("settings", Settings("", (), 4, Retention()))
    ) == Settings("", (), 4, Retention(0, 1, 1))


def test_a_trial_of_before() -> None:
    desk = Desk("trial#4")
    desk.tell(created())
    body = older_settings(TRIAL.encode_state(desk.state))
    loaded = TRIAL.decode_state(without(body, "life", "killed", "deleted"))
    assert isinstance(loaded, TrialState)
    assert loaded == desk.state


def test_messages_of_before() -> None:
    status = {"status": "PAUSED"}
    assert TRIAL.decode_message("ExperimentStatusChanged", status) == ExperimentStatusChanged(
        Status.PAUSED, forced=False
    )
    ended = {"number": 0, "status": "ERROR", "early_exit": "ERRORED", "message": "m"}
    assert EXPERIMENT.decode_message("TrialEnded", ended) == TrialEnded(
        0, Status.ERROR, "ERRORED", "m", life=0
    )
    asked = {"trial_id": 4, "epoch": 1, "slots": 2, "ticket": "t"}
    assert POOL.decode_message("SlotsRequested", asked) == SlotsRequested(4, 1, 2, "t", group=0)


def test_submissions_and_creations_of_before() -> None:
    message = submitted(random_plan(2))
    fields = json.loads(EXPERIMENT._messages["ExperimentSubmitted"].dump_json(message))
    for name in ("retention", "warm_start", "rules"):
        del fields[name]
    assert EXPERIMENT.decode_message("ExperimentSubmitted", fields) == message
    assert isinstance(message, ExperimentSubmitted)
    first = created()
    fields = json.loads(TRIAL._messages["TrialCreated"].dump_json(first))
    del fields["life"]
    assert TRIAL.decode_message("TrialCreated", fields) == first
    assert isinstance(first, TrialCreated)
