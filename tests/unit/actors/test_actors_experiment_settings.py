"""What can be changed of an experiment, how it is archived, and how it goes for good."""

import json
from typing import Any

import pytest

from control_plane.actors.experiment_deletion import REMOVED_MAX
from control_plane.actors.experiment_messages import (
    ActivateRequested,
    ArchiveRequested,
    CollectionEnded,
    DeleteRequested,
    DeletionContinued,
    SettingsChanged,
    TrialEnded,
    UnarchiveRequested,
)
from control_plane.actors.experiment_state import Listing, Settings, read_listing
from control_plane.actors.experiment_summaries import Summaries, TrialSummary
from control_plane.actors.records import CheckpointRef, Retention, Status
from control_plane.actors.step import Refused
from control_plane.evolve import evolve
from tests.unit.actors.desk import ABSENT, Desk
from tests.unit.actors.samples import random_plan, submitted

ARCHIVE, UNARCHIVE, DELETE = ArchiveRequested(), UnarchiveRequested(), DeleteRequested()
ENDED = (Status.COMPLETED, Status.CANCELED, Status.ERROR)
COLLECTION = ("collections", "000000000001")
SOURCE = CheckpointRef("aaaaaaaa-0000-4000-8000-000000000001", 9, 40, "2/9/1/a", "0" * 64)


def experiment(trials: int = 3, *, concurrent: int = 0) -> Desk:
    desk = Desk("experiment#1")
    desk.tell(submitted(random_plan(trials, concurrent=concurrent)))
    return desk


def ended(status: Status = Status.COMPLETED, *, warm_start: CheckpointRef | None = None) -> Desk:
    desk = Desk("experiment#1")
    desk.tell(submitted(random_plan(1), warm_start=warm_start))
    desk.tell(TrialEnded(0, Status.COMPLETED, ""))
    desk.state = evolve(desk.state, status=status)
    return desk


def listed(desk: Desk) -> Listing:
    return read_listing(desk.row("experiments", "000000000001").body)


def collection(desk: Desk) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(desk.row(*COLLECTION).body)
    return found


def refusal(desk: Desk, command: object) -> tuple[str, str]:
    before = desk.state
    with pytest.raises(Refused) as refused:
        desk.tell(command)
    assert desk.state == before
    return refused.value.code, str(refused.value)


def test_what_is_not_given_stays() -> None:
    desk = experiment()
    assert desk.tell(SettingsChanged(description="second try")) == 1
    assert desk.part("settings") == Settings("second try", (), None, Retention(0, 1, 1))
    desk.tell(SettingsChanged(labels=("a", "b")))
    assert desk.part("settings") == Settings("second try", ("a", "b"), None, Retention(0, 1, 1))
    desk.tell(SettingsChanged(name="letters"))
    assert desk.state.name == "letters"
    assert listed(desk) == Listing("ACTIVE", "ada", "letters", ("a", "b"))


def test_a_change_to_the_same_writes_nothing() -> None:
    desk = experiment()
    desk.tell(SettingsChanged(name="digits", description="", labels=(), max_slots_given=True))
    assert desk.parts_written == []
    assert desk.sent == []


def test_a_limit_below_what_one_trial_needs_is_refused() -> None:
    # A trial of the samples needs two slots.
    code, text = refusal(experiment(), SettingsChanged(max_slots=1, max_slots_given=True))
    assert code == "invalid"
    assert text.startswith("max_slots: must be at least slots_per_trial (2), not 1")


def test_a_change_of_retention_collects_at_once_though_trials_run() -> None:
    desk = experiment()
    desk.tell(SettingsChanged(retention=Retention(2, 0, 1)))
    assert desk.state.status is Status.ACTIVE
    assert collection(desk) == {"generation": 1, "retention": [2, 0, 1], "delete": False}
    desk.tell(SettingsChanged(retention=Retention(0, 0, 1)))
    assert collection(desk) == {"generation": 2, "retention": [0, 0, 1], "delete": False}


def test_the_same_retention_once_more_collects_what_has_come_since() -> None:
    # 0, 1 and 1 are the defaults: nothing was collected yet, and what is beyond them goes now.
    desk = experiment()
    desk.tell(SettingsChanged(retention=Retention(0, 1, 1)))
    assert collection(desk) == {"generation": 1, "retention": [0, 1, 1], "delete": False}
    assert desk.part("settings") is None


def test_what_has_ended_can_be_changed_and_only_collects() -> None:
    desk = ended()
    desk.tell(SettingsChanged(max_slots=8, max_slots_given=True, retention=Retention(1, 1, 1)))
    assert desk.sent == []
    assert collection(desk)["generation"] == 2


def test_what_is_being_deleted_cannot_be_changed() -> None:
    code, text = refusal(ended(Status.DELETING), SettingsChanged(name="letters"))
    assert (code, text) == ("conflict", "experiment 1 is DELETING and can no longer be changed")


@pytest.mark.parametrize("status", ENDED)
def test_an_ended_experiment_is_archived_and_unarchived(status: Status) -> None:
    desk = ended(status)
    assert desk.tell(ARCHIVE) == 1
    assert (desk.state.archived, listed(desk).archived) == (True, True)
    assert desk.tell(ARCHIVE) == 1
    desk.tell(UNARCHIVE)
    assert (desk.state.archived, listed(desk).archived) == (False, False)


@pytest.mark.parametrize("status", [s for s in Status if s not in (*ENDED, Status.DELETED)])
@pytest.mark.parametrize(("command", "verb"), [(ARCHIVE, "archived"), (UNARCHIVE, "unarchived")])
def test_only_an_ended_experiment_is_archived(status: Status, command: object, verb: str) -> None:
    desk = experiment()
    desk.state = evolve(desk.state, status=status)
    code, text = refusal(desk, command)
    assert code == "conflict"
    assert text.endswith(f"only one that is COMPLETED, CANCELED or ERROR can be {verb}")


def test_a_row_of_the_list_of_before_there_was_more_in_it_is_read() -> None:
    assert read_listing(b"ACTIVE\nada") == Listing("ACTIVE", "ada", "", (), False)


def test_the_end_of_a_collection_takes_its_row_away() -> None:
    desk = ended()
    desk.tell(CollectionEnded(1))
    assert desk.row(*COLLECTION) == ABSENT
    assert desk.state.status is Status.COMPLETED


def test_a_late_end_of_an_earlier_collection_leaves_the_later_one() -> None:
    desk = ended()
    desk.tell(SettingsChanged(retention=Retention(0, 0, 0)))
    desk.tell(CollectionEnded(1))
    assert collection(desk)["generation"] == 2
    desk.tell(CollectionEnded(2), CollectionEnded(2))
    assert desk.row(*COLLECTION) == ABSENT


def test_a_collection_that_failed_is_noted_and_ended() -> None:
    desk = ended()
    desk.tell(CollectionEnded(1, "the store is full"))
    assert desk.reasons == ["the collection failed: the store is full"]
    assert (desk.state.status, desk.state.message) == (Status.COMPLETED, "")
    assert desk.row(*COLLECTION) == ABSENT


@pytest.mark.parametrize("status", [*ENDED, Status.DELETE_FAILED])
def test_deletion_asks_the_collector_for_everything_to_go(status: Status) -> None:
    desk = ended(status)
    assert desk.tell(DELETE) == 1
    assert desk.state.status == Status.DELETING
    assert listed(desk).state == "DELETING"
    assert collection(desk) == {"generation": 2, "retention": [0, 1, 1], "delete": True}
    desk.tell(DELETE)
    assert collection(desk)["generation"] == 2


@pytest.mark.parametrize("status", [Status.ACTIVE, Status.PAUSED, Status.STOPPING_KILLED])
def test_what_has_not_ended_is_not_deleted(status: Status) -> None:
    desk = experiment()
    desk.state = evolve(desk.state, status=status)
    code, text = refusal(desk, DELETE)
    assert code == "conflict"
    assert text.endswith("only one that has ended can be deleted; cancel or kill it first")


def test_a_deletion_that_failed_says_why_and_may_be_asked_for_again() -> None:
    desk = ended()
    desk.tell(DELETE, CollectionEnded(2, "no such folder"))
    assert (desk.state.status, desk.state.message) == (Status.DELETE_FAILED, "no such folder")
    assert listed(desk).state == "DELETE_FAILED"
    assert desk.row(*COLLECTION) == ABSENT
    desk.tell(DELETE)
    assert (desk.state.status, desk.state.message) == (Status.DELETING, "")
    assert collection(desk)["generation"] == 3


def test_a_deleted_experiment_leaves_a_head_and_nothing_else() -> None:
    desk = ended()
    desk.tell(SettingsChanged(name="letters", labels=("a",)))
    desk.tell(DELETE)
    desk.tell(CollectionEnded(2))
    assert desk.state.status == Status.DELETED
    assert desk.parts == {}
    assert [row for row in desk.rows if row[0] != "counters"] == []
    # Whatever comes later finds nobody.
    desk.tell(CollectionEnded(2), DeletionContinued(), TrialEnded(0, Status.ERROR, "ERRORED"))
    assert desk.state.status == Status.DELETED
    assert desk.rows.keys() == {("counters", "trial")}


def test_the_parts_of_a_large_experiment_go_a_few_at_a_time() -> None:
    # 70 parts of trials: 32 and 32 go with a message each to go on, then the last 6 and the rest.
    desk = ended()
    summary = TrialSummary(1, Status.COMPLETED, 0.0, None)
    for index in range(70):
        part = Summaries((summary,) * 64)
        desk.parts[f"trials/{index}"] = desk._kind.encode_part(f"trials/{index}", part)
    desk.state = evolve(desk.state, trials=70 * 64)
    desk.tell(DELETE)
    desk.tell(CollectionEnded(2))
    assert REMOVED_MAX == 32
    assert (desk.state.status, desk.state.trials) == (Status.DELETING, 38 * 64)
    assert desk.sent_to("experiment#1") == [DeletionContinued()]
    desk.tell(DeletionContinued())
    assert desk.state.trials == 6 * 64
    desk.tell(DeletionContinued())
    assert (desk.state.status, desk.parts) == (Status.DELETED, {})


def test_a_deletion_that_cannot_take_a_message_has_failed() -> None:
    desk = ended()
    desk.tell(DELETE)
    desk.bury(CollectionEnded(2))
    assert desk.state.status == Status.DELETE_FAILED
    assert desk.state.message == "internal error: CollectionEnded could not be processed"


def test_an_experiment_pins_the_checkpoint_it_starts_from_until_it_is_deleted() -> None:
    desk = ended(warm_start=SOURCE)
    assert json.loads(desk.row("pins", SOURCE.uuid).body) == {"by": [1], "gone": False}
    desk.tell(DELETE, CollectionEnded(2))
    body = desk.row("pins", SOURCE.uuid).body
    assert not body or json.loads(body)["by"] == []


def test_two_experiments_may_start_from_one_checkpoint() -> None:
    first = ended(warm_start=SOURCE)
    second = Desk("experiment#2", first.rows)
    second.tell(submitted(random_plan(1), experiment_id=2, warm_start=SOURCE))
    assert json.loads(first.row("pins", SOURCE.uuid).body)["by"] == [1, 2]
    first.tell(DELETE, CollectionEnded(2))
    assert json.loads(first.row("pins", SOURCE.uuid).body)["by"] == [2]


def test_nothing_starts_from_a_checkpoint_that_is_gone() -> None:
    desk = ended(warm_start=SOURCE)
    pinned = desk.rows["pins", SOURCE.uuid]
    desk.rows["pins", SOURCE.uuid] = pinned._replace(body=b'{"by": [], "gone": true}')
    late = Desk("experiment#2", desk.rows)
    with pytest.raises(Refused) as refused:
        late.tell(submitted(random_plan(1), experiment_id=2, warm_start=SOURCE))
    assert refused.value.code == "conflict"
    assert late.state is None


def test_an_archived_experiment_can_be_deleted_but_not_activated() -> None:
    desk = ended()
    desk.tell(ARCHIVE)
    assert refusal(desk, ActivateRequested())[0] == "conflict"
    desk.tell(DELETE)
    assert desk.state.status == Status.DELETING
