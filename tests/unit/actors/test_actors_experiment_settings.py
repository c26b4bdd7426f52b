"""Changes of settings, archiving and deletion of an experiment."""

import json
from typing import Any

import pytest

from control_plane.actors.experiment.deletion import REMOVED_MAX
from control_plane.actors.experiment.listing import ListingRow, decode_listing
from control_plane.actors.experiment.state import Settings
from control_plane.actors.experiment.trial_summaries import Summaries, TrialSummary
from control_plane.actors.messages.experiment import (
    ActivateRequested,
    ArchiveRequested,
    CollectionEnded,
    DeleteRequested,
    DeletionContinued,
    SettingsChanged,
    TrialEnded,
    UnarchiveRequested,
)
from control_plane.actors.records import CheckpointRef, Retention, Status
from control_plane.actors.step import CommandRefused
from control_plane.evolve import evolve
from tests.unit.actors.actor_harness import ABSENT, ActorHarness
from tests.unit.actors.sample_messages import experiment_submitted, random_plan

ARCHIVE, UNARCHIVE, DELETE = ArchiveRequested(), UnarchiveRequested(), DeleteRequested()
ENDED = (Status.COMPLETED, Status.CANCELED, Status.ERROR)
COLLECTION = ("collections", "000000000001")
SOURCE = CheckpointRef("aaaaaaaa-0000-4000-8000-000000000001", 9, 40, "2/9/1/a", "0" * 64)


def experiment(trials: int = 3, *, concurrent: int = 0) -> ActorHarness:
    actor = ActorHarness("experiment#1")
    actor.deliver(experiment_submitted(random_plan(trials, concurrent=concurrent)))
    return actor


def ended_experiment(
    status: Status = Status.COMPLETED, *, warm_start: CheckpointRef | None = None
) -> ActorHarness:
    actor = ActorHarness("experiment#1")
    actor.deliver(experiment_submitted(random_plan(1), warm_start=warm_start))
    actor.deliver(TrialEnded(0, Status.COMPLETED, ""))
    actor.state = evolve(actor.state, status=status)
    return actor


def listing_row(actor: ActorHarness) -> ListingRow:
    return decode_listing(actor.row("experiments", "000000000001").body)


def collection(actor: ActorHarness) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(actor.row(*COLLECTION).body)
    return body


def refusal(actor: ActorHarness, command: object) -> tuple[str, str]:
    before = actor.state
    with pytest.raises(CommandRefused) as refused:
        actor.deliver(command)
    assert actor.state == before
    return refused.value.code, str(refused.value)


def test_missing_values_keep_the_settings() -> None:
    actor = experiment()
    assert actor.deliver(SettingsChanged(description="second try")) == 1
    assert actor.part("settings") == Settings("second try", (), None, Retention(0, 1, 1))
    actor.deliver(SettingsChanged(labels=("a", "b")))
    assert actor.part("settings") == Settings("second try", ("a", "b"), None, Retention(0, 1, 1))
    actor.deliver(SettingsChanged(name="letters"))
    assert actor.state.name == "letters"
    assert listing_row(actor) == ListingRow("ACTIVE", "ada", "letters", ("a", "b"))


def test_unchanged_settings_write_no_part() -> None:
    actor = experiment()
    actor.deliver(SettingsChanged(name="digits", description="", labels=(), max_slots_given=True))
    assert actor.parts_written == []
    assert actor.sent == []


def test_limit_below_the_slots_of_a_trial_is_refused() -> None:
    # A trial of the samples needs two slots.
    code, text = refusal(experiment(), SettingsChanged(max_slots=1, max_slots_given=True))
    assert code == "invalid"
    assert text.startswith("max_slots: must be at least slots_per_trial (2), not 1")


def test_new_retention_requests_a_collection_while_trials_run() -> None:
    actor = experiment()
    actor.deliver(SettingsChanged(retention=Retention(2, 0, 1)))
    assert actor.state.status is Status.ACTIVE
    assert collection(actor) == {"generation": 1, "retention": [2, 0, 1], "delete": False}
    actor.deliver(SettingsChanged(retention=Retention(0, 0, 1)))
    assert collection(actor) == {"generation": 2, "retention": [0, 0, 1], "delete": False}


def test_same_retention_requests_a_second_collection() -> None:
    # 0, 1 and 1 are the defaults. A first collection applies them to the checkpoints so far.
    actor = experiment()
    actor.deliver(SettingsChanged(retention=Retention(0, 1, 1)))
    assert collection(actor) == {"generation": 1, "retention": [0, 1, 1], "delete": False}
    assert actor.part("settings") is None


def test_ended_experiment_may_be_changed() -> None:
    actor = ended_experiment()
    actor.deliver(SettingsChanged(max_slots=8, max_slots_given=True, retention=Retention(1, 1, 1)))
    assert actor.sent == []
    assert collection(actor)["generation"] == 2


def test_experiment_in_deletion_cannot_be_changed() -> None:
    code, text = refusal(ended_experiment(Status.DELETING), SettingsChanged(name="letters"))
    assert (code, text) == ("conflict", "experiment 1 is DELETING and can no longer be changed")


@pytest.mark.parametrize("status", ENDED)
def test_ended_experiment_is_archived_and_unarchived(status: Status) -> None:
    actor = ended_experiment(status)
    assert actor.deliver(ARCHIVE) == 1
    assert (actor.state.archived, listing_row(actor).archived) == (True, True)
    assert actor.deliver(ARCHIVE) == 1
    actor.deliver(UNARCHIVE)
    assert (actor.state.archived, listing_row(actor).archived) == (False, False)


@pytest.mark.parametrize("status", [s for s in Status if s not in (*ENDED, Status.DELETED)])
@pytest.mark.parametrize(("command", "verb"), [(ARCHIVE, "archived"), (UNARCHIVE, "unarchived")])
def test_only_an_ended_experiment_is_archived(status: Status, command: object, verb: str) -> None:
    actor = experiment()
    actor.state = evolve(actor.state, status=status)
    code, text = refusal(actor, command)
    assert code == "conflict"
    assert text.endswith(f"only an experiment in state COMPLETED, CANCELED or ERROR can be {verb}")


def test_listing_row_of_an_old_release_is_decoded() -> None:
    assert decode_listing(b"ACTIVE\nada") == ListingRow("ACTIVE", "ada", "", (), False)


def test_end_of_a_collection_removes_the_row() -> None:
    actor = ended_experiment()
    actor.deliver(CollectionEnded(1))
    assert actor.row(*COLLECTION) == ABSENT
    assert actor.state.status is Status.COMPLETED


def test_late_end_of_an_earlier_collection_keeps_the_row() -> None:
    actor = ended_experiment()
    actor.deliver(SettingsChanged(retention=Retention(0, 0, 0)))
    actor.deliver(CollectionEnded(1))
    assert collection(actor)["generation"] == 2
    actor.deliver(CollectionEnded(2), CollectionEnded(2))
    assert actor.row(*COLLECTION) == ABSENT


def test_failed_collection_is_recorded_and_removed() -> None:
    actor = ended_experiment()
    actor.deliver(CollectionEnded(1, "the store is full"))
    assert actor.reasons == ["the collection failed: the store is full"]
    assert (actor.state.status, actor.state.message) == (Status.COMPLETED, "")
    assert actor.row(*COLLECTION) == ABSENT


@pytest.mark.parametrize("status", [*ENDED, Status.DELETE_FAILED])
def test_deletion_requests_the_removal_of_all_files(status: Status) -> None:
    actor = ended_experiment(status)
    assert actor.deliver(DELETE) == 1
    assert actor.state.status == Status.DELETING
    assert listing_row(actor).state == "DELETING"
    assert collection(actor) == {"generation": 2, "retention": [0, 1, 1], "delete": True}
    actor.deliver(DELETE)
    assert collection(actor)["generation"] == 2


@pytest.mark.parametrize("status", [Status.ACTIVE, Status.PAUSED, Status.STOPPING_KILLED])
def test_open_experiment_is_not_deleted(status: Status) -> None:
    actor = experiment()
    actor.state = evolve(actor.state, status=status)
    code, text = refusal(actor, DELETE)
    assert code == "conflict"
    assert text.endswith(
        "only an experiment that has ended can be deleted; cancel or kill it first"
    )


def test_failed_deletion_has_a_message_and_may_be_repeated() -> None:
    actor = ended_experiment()
    actor.deliver(DELETE, CollectionEnded(2, "no such folder"))
    assert (actor.state.status, actor.state.message) == (Status.DELETE_FAILED, "no such folder")
    assert listing_row(actor).state == "DELETE_FAILED"
    assert actor.row(*COLLECTION) == ABSENT
    actor.deliver(DELETE)
    assert (actor.state.status, actor.state.message) == (Status.DELETING, "")
    assert collection(actor)["generation"] == 3


def test_deleted_experiment_keeps_only_the_head() -> None:
    actor = ended_experiment()
    actor.deliver(SettingsChanged(name="letters", labels=("a",)))
    actor.deliver(DELETE)
    actor.deliver(CollectionEnded(2))
    assert actor.state.status == Status.DELETED
    assert actor.parts == {}
    assert [row for row in actor.rows if row[0] != "counters"] == []
    # Later messages are ignored.
    actor.deliver(CollectionEnded(2), DeletionContinued(), TrialEnded(0, Status.ERROR, "ERRORED"))
    assert actor.state.status == Status.DELETED
    assert actor.rows.keys() == {("counters", "trial")}


def test_parts_of_a_large_experiment_are_removed_in_several_commits() -> None:
    # 70 parts of trials: 32 and 32 go with a message each to go on, then the last 6 and the rest.
    actor = ended_experiment()
    summary = TrialSummary(1, Status.COMPLETED, 0.0, None)
    for index in range(70):
        part = Summaries((summary,) * 64)
        actor.parts[f"trials/{index}"] = actor.actor_type.encode_part(f"trials/{index}", part)
    actor.state = evolve(actor.state, trials=70 * 64)
    actor.deliver(DELETE)
    actor.deliver(CollectionEnded(2))
    assert REMOVED_MAX == 32
    assert (actor.state.status, actor.state.trials) == (Status.DELETING, 38 * 64)
    assert actor.messages_to("experiment#1") == [DeletionContinued()]
    actor.deliver(DeletionContinued())
    assert actor.state.trials == 6 * 64
    actor.deliver(DeletionContinued())
    assert (actor.state.status, actor.parts) == (Status.DELETED, {})


def test_fallback_fails_a_deletion() -> None:
    actor = ended_experiment()
    actor.deliver(DELETE)
    actor.deliver_dead_letter(CollectionEnded(2))
    assert actor.state.status == Status.DELETE_FAILED
    assert actor.state.message == "internal error: CollectionEnded could not be processed"


def test_warm_start_is_pinned_until_the_deletion() -> None:
    actor = ended_experiment(warm_start=SOURCE)
    assert json.loads(actor.row("pins", SOURCE.uuid).body) == {"by": [1], "gone": False}
    actor.deliver(DELETE, CollectionEnded(2))
    body = actor.row("pins", SOURCE.uuid).body
    assert not body or json.loads(body)["by"] == []


def test_two_experiments_may_start_from_the_same_checkpoint() -> None:
    first = ended_experiment(warm_start=SOURCE)
    second = ActorHarness("experiment#2", first.rows)
    second.deliver(experiment_submitted(random_plan(1), experiment_id=2, warm_start=SOURCE))
    assert json.loads(first.row("pins", SOURCE.uuid).body)["by"] == [1, 2]
    first.deliver(DELETE, CollectionEnded(2))
    assert json.loads(first.row("pins", SOURCE.uuid).body)["by"] == [2]


def test_deleted_checkpoint_is_refused_as_a_warm_start() -> None:
    actor = ended_experiment(warm_start=SOURCE)
    pinned = actor.rows["pins", SOURCE.uuid]
    actor.rows["pins", SOURCE.uuid] = pinned._replace(body=b'{"by": [], "gone": true}')
    late = ActorHarness("experiment#2", actor.rows)
    with pytest.raises(CommandRefused) as refused:
        late.deliver(experiment_submitted(random_plan(1), experiment_id=2, warm_start=SOURCE))
    assert refused.value.code == "conflict"
    assert late.state is None


def test_archived_experiment_can_be_deleted_but_not_activated() -> None:
    actor = ended_experiment()
    actor.deliver(ARCHIVE)
    assert refusal(actor, ActivateRequested())[0] == "conflict"
    actor.deliver(DELETE)
    assert actor.state.status == Status.DELETING
