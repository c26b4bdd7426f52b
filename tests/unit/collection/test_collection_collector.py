import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from control_plane.actors import addresses
from control_plane.actors.records import Retention
from control_plane.actors.trial_checkpoints import COLLECTIONS, removal_sort
from control_plane.collection.collector import wanted_of
from control_plane.collection.folders import remove_below
from control_plane.collection.removal import uploads_cut_short
from control_plane.collection.work import collected, request_of
from control_plane.state.table import Conflict, Page
from tests.unit.collection.yard import Yard, uuid_of


@pytest.fixture
def yard(tmp_path: Path) -> Yard:
    """Two trials that have ended, with three checkpoints each; the last ones have no metric."""
    return Yard.searched(tmp_path)


def test_a_change_of_what_is_kept_deletes_the_rest(yard: Yard) -> None:
    # Best of all 1/20 (0.1); best of each trial 1/20 and 2/20; latest of each 1/30 and 2/30.
    yard.keep(1, 1, 0)
    yard.work_off()
    assert yard.kept() == ["1/20", "2/20"]
    assert yard.states() == {
        "1/10": "DELETED",
        "1/20": "COMPLETED",
        "1/30": "DELETED",
        "2/10": "DELETED",
        "2/20": "COMPLETED",
        "2/30": "DELETED",
    }


def test_what_is_deleted_stays_deleted_when_more_is_kept_later(yard: Yard) -> None:
    yard.keep(0, 0, 2)
    yard.work_off()
    assert yard.kept() == ["1/20", "1/30", "2/20", "2/30"]
    yard.keep(9, 9, 9)
    yard.work_off()
    assert yard.kept() == ["1/20", "1/30", "2/20", "2/30"]


def test_without_a_row_one_query_is_all_that_is_read(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    query = yard.table.query

    def counted(partition: str, first: str, last: str, **options: Any) -> Page:
        asked.append(partition)
        return query(partition, first, last, **options)

    monkeypatch.setattr(yard.table, "query", counted)
    monkeypatch.setattr(yard.table, "get", lambda key: pytest.fail(f"{key} was read"))
    assert not yard.collector.collect()
    assert asked == [COLLECTIONS]


def test_it_never_holds_its_caller_up_and_goes_on_where_it_was(yard: Yard) -> None:
    yard.keep(0, 0, 0)
    passes = 1
    while yard.collector.collect(budget_seconds=0):
        passes += 1
        assert passes < 100
    # A survey of two trials, six checkpoints condemned and removed: each is a step at least.
    assert passes > 10
    assert yard.kept() == []


def test_a_collection_begun_by_a_process_that_died_is_finished_by_another(yard: Yard) -> None:
    for lived in range(30):
        yard.keep(0, lived % 2, 2)
        for _ in range(lived):
            yard.collector.collect(budget_seconds=0)
        yard = Yard(yard.folder, yard.table, yard.now_ms, yard.trials)
    yard.keep(0, 0, 0)
    yard.work_off()
    assert yard.kept() == []


def test_one_that_others_started_from_stays(yard: Yard) -> None:
    yard.pin(uuid_of(1, 10), 7)
    yard.keep(0, 0, 0)
    yard.work_off()
    assert yard.kept() == ["1/10"]
    assert yard.engine.state(addresses.trial(1)).checkpoint is None


def ranked(yard: Yard) -> None:
    """Lets the collector come so far that it has condemned what trial 1 has to give up, and knows
    what trial 2 has: a step for each trial's survey, and one for the first command.
    """
    for _ in range(3):
        yard.collector.collect(budget_seconds=0)
    states = yard.states()
    assert "DELETING" in [state for name, state in states.items() if name.startswith("1/")]
    assert {state for name, state in states.items() if name.startswith("2/")} == {"COMPLETED"}


def test_a_pin_taken_after_the_ranking_is_respected(yard: Yard) -> None:
    yard.keep(0, 0, 0)
    ranked(yard)
    yard.pin(uuid_of(2, 10), 7)
    yard.work_off()
    assert yard.kept() == ["2/10"]


def test_what_was_validated_after_the_ranking_is_ranked_again(yard: Yard) -> None:
    yard.keep(0, 1, 0)
    ranked(yard)
    # 2/30 had no metric when it was decided that it goes; now it is the best of its trial.
    yard.add(2, 30, 0.05)
    yard.work_off()
    assert yard.kept() == ["1/20", "2/30"]


def test_a_request_that_is_replaced_goes_no_further(yard: Yard) -> None:
    yard.keep(0, 0, 0)
    ranked(yard)
    yard.keep(9, 9, 9)
    yard.work_off()
    assert yard.kept() == ["2/10", "2/20", "2/30"]


def test_a_request_replaced_between_its_last_reading_and_the_commit_goes_no_further(
    yard: Yard,
) -> None:
    yard.keep(0, 0, 0)
    row = yard.table.query(COLLECTIONS, " ", "~").rows[0]
    yard.keep(9, 9, 9)
    with pytest.raises(Conflict):
        list(collected(yard.stores, yard.experiment, request_of(row)))
    assert len(yard.kept()) == 6


def test_the_trial_of_a_deleted_checkpoint_goes_on_from_the_newest_that_is_left(
    yard: Yard,
) -> None:
    yard.set_latest(1, 30)
    yard.keep(0, 1, 0)
    yard.work_off()
    assert yard.kept() == ["1/20", "2/20"]
    latest = yard.engine.state(addresses.trial(1)).checkpoint
    assert latest is not None
    assert latest.steps_completed == 20


def test_two_collectors_at_once_do_no_harm(yard: Yard) -> None:
    other = Yard(yard.folder, yard.table, yard.now_ms, yard.trials)
    yard.keep(1, 0, 0)
    for _ in range(60):
        yard.collector.collect(budget_seconds=0)
        other.collector.collect(budget_seconds=0)
    assert yard.kept() == ["1/20"]
    assert yard.rows(COLLECTIONS) == []


def test_empty_folders_of_an_ended_experiment_go_too(yard: Yard) -> None:
    yard.keep(0, 0, 0)
    yard.work_off()
    assert list(yard.root.iterdir()) == []


def test_uploads_that_were_cut_short_are_removed_at_the_end(yard: Yard) -> None:
    began = "0000000a-0000-4000-8000-00000000000a"
    kept = "00000001-0000-4000-8000-00000000001e"
    yard.intend(1, 1, {"uuid": began, "path": f"1/2/1/{kept}"})
    yard.intend(1, 1, {"uuid": kept})
    yard.intend(1, 1, {"uuid": "../../2"})
    yard.intend(1, 1, {"uuid": 7})
    yard.write(f"1/1/1/{began}/half")
    yard.keep(0, 0, 1)
    yard.work_off()
    assert yard.kept() == ["1/30", "2/30"]
    assert not (yard.root / f"1/1/1/{began}").exists()


def test_a_checkpoint_recorded_elsewhere_costs_nobody_anything(yard: Yard) -> None:
    precious = yard.write("precious/file")
    for n, path in enumerate(
        ("precious/file", "..", "/", "", "1/2/1/00000002-0000-4000-8000-00000000001e", "1/1/1/x/..")
    ):
        yard.add(1, 40 + n, path=path)
    yard.keep(0, 0, 0)
    yard.work_off()
    assert set(yard.states().values()) == {"DELETED"}
    assert precious.exists()


def test_a_store_that_fails_is_tried_again_and_again(
    yard: Yard, caplog: pytest.LogCaptureFixture
) -> None:
    yard.root.rename(yard.folder / "away")
    yard.keep(0, 0, 1)
    tries = []
    for second in range(40):
        caplog.clear()
        did_something = yard.collector.collect(budget_seconds=60)
        assert did_something == ("No such file or directory" in caplog.text)
        yard.now_ms += 1000
        if "No such file or directory" in caplog.text:
            tries.append(second)
    # Pauses of 2, 4, 8 and 16 seconds, in which there is nothing to do.
    assert tries == [0, 2, 6, 14, 30]
    assert yard.states()["1/10"] == "DELETING"
    (yard.folder / "away").rename(yard.root)
    yard.work_off()
    assert yard.kept() == ["1/30", "2/30"]


def test_one_folder_that_cannot_be_removed_holds_up_no_other(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(root: Path, parts: tuple[str, ...], *, prune: bool) -> Iterator[None]:
        if parts[:2] == ("1", "1"):
            raise PermissionError(errno.EACCES, "denied")
        return remove_below(root, parts, prune=prune)

    monkeypatch.setattr("control_plane.collection.folders.remove_below", denied)
    yard.keep(0, 0, 1)
    yard.collector.collect(budget_seconds=60)
    states = yard.states()
    assert (states["1/10"], states["2/10"]) == ("DELETING", "DELETED")
    monkeypatch.undo()
    yard.work_off()
    assert yard.kept() == ["1/30", "2/30"]


def test_an_experiment_that_cannot_be_collected_holds_up_no_other(yard: Yard) -> None:
    nobodys = {"generation": 1, "retention": [0, 0, 0], "delete": False}
    yard.put(COLLECTIONS, f"{99:012d}", nobodys)
    yard.put(COLLECTIONS, removal_sort(98, uuid_of(1, 30)), 7)
    yard.keep(0, 0, 1)
    for _ in range(10):
        yard.collector.collect()
    assert yard.kept() == ["1/30", "2/30"]


def test_what_a_trial_that_goes_on_uploads_is_left_alone(tmp_path: Path) -> None:
    yard = Yard(tmp_path)
    yard.begin(2)
    uploading = "0000000a-0000-4000-8000-00000000000a"
    yard.intend(1, 1, {"uuid": uploading})
    file = yard.write(f"1/1/1/{uploading}/half")
    list(uploads_cut_short(yard.stores, yard.experiment))
    assert file.exists()
    yard.end()
    assert not file.exists()


def test_removals_of_many_experiments_are_all_found(yard: Yard) -> None:
    # More rows of experiments before it than a page holds.
    for n in range(150):
        yard.put(COLLECTIONS, removal_sort(2 + n % 3, f"{n:08x}"), 7)
    yard.put(COLLECTIONS, removal_sort(9, "1"), 7)
    assert wanted_of(yard.table) == {2: None, 3: None, 4: None, 9: None}


def test_requests_come_before_removals(yard: Yard) -> None:
    yard.condemn(1, 10)
    yard.keep(0, 0, 1)
    for n in range(150):
        yard.put(COLLECTIONS, removal_sort(0, f"{n:08x}"), 7)
    found = wanted_of(yard.table)
    assert found.keys() == {0, 1}
    assert found[0] is None
    assert found[1] is not None
    assert found[1].retention == Retention(0, 0, 1)
