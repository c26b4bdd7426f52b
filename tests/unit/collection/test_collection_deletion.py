from pathlib import Path

import pytest

from control_plane.actors import addresses
from control_plane.actors.step import Refused
from control_plane.state.table import Expect, Key, Put
from tests.unit.collection.yard import EXPERIMENT, Yard, uuid_of


@pytest.fixture
def yard(tmp_path: Path) -> Yard:
    """Two trials that have ended, with three checkpoints each; the last ones have no metric."""
    return Yard.searched(tmp_path)


def test_deleting_the_experiment_leaves_nothing_of_it(yard: Yard) -> None:
    yard.fill()
    of_another = yard.rows(addresses.trial(9))
    yard.delete()
    yard.work_off()
    assert yard.experiment.status == "DELETED"
    assert yard.rows(addresses.trial(9)) == of_another
    files = [path for path in yard.root.rglob("*") if path.is_file()]
    assert files == [yard.root / "tensorboard/2/9/events"]
    for address in (EXPERIMENT, addresses.trial(1), addresses.trial(2)):
        kinds = {sort.partition("#")[0] for sort in yard.rows(address)}
        assert kinds <= {"M", "Z"}
    assert yard.rows("checkpoints") == []
    assert yard.objects_left() == ["logs/9/9.1/0-4", "metrics/9/1234abcd"]


def test_the_rows_that_say_that_a_checkpoint_is_gone_expire_with_the_experiment(
    yard: Yard,
) -> None:
    yard.delete()
    yard.work_off()
    dues = {row.due_ms for row in yard.table.query("pins", " ", "~").rows}
    assert len(yard.rows("pins")) == 6
    assert None not in dues


def test_an_experiment_others_started_from_is_not_touched(yard: Yard) -> None:
    yard.pin(uuid_of(2, 10), 7)
    yard.delete()
    yard.work_off()
    assert yard.experiment.status == "DELETE_FAILED"
    assert uuid_of(2, 10) in yard.experiment.message
    assert len(yard.kept()) == 6


def test_a_deletion_that_fails_is_reported_and_may_be_asked_for_again(yard: Yard) -> None:
    yard.root.rename(yard.folder / "away")
    yard.delete()
    while yard.experiment.status == "DELETING":
        yard.collector.collect()
        yard.now_ms += 1000
    assert yard.experiment.status == "DELETE_FAILED"
    assert "No such file or directory" in yard.experiment.message
    (yard.folder / "away").rename(yard.root)
    yard.delete()
    yard.work_off()
    assert yard.experiment.status == "DELETED"
    assert list(yard.root.iterdir()) == []


def test_deletion_asked_for_twice_is_done_once(yard: Yard) -> None:
    yard.delete()
    yard.delete()
    yard.work_off()
    assert yard.experiment.status == "DELETED"


def test_an_experiment_without_files_is_deleted_though_its_store_was_never_made(
    tmp_path: Path,
) -> None:
    yard = Yard(tmp_path)
    yard.begin(1)
    yard.end()
    yard.root.rmdir()
    yard.delete()
    yard.work_off()
    assert yard.experiment.status == "DELETED"


def test_a_pin_taken_while_it_is_deleted_ends_the_deletion(yard: Yard) -> None:
    yard.delete()
    # A step for each trial's survey, and one for what trial 1 has to give up.
    for _ in range(3):
        yard.collector.collect(budget_seconds=0)
    yard.pin(uuid_of(2, 10), 7)
    yard.work_off()
    assert yard.experiment.status == "DELETE_FAILED"
    assert uuid_of(2, 10) in yard.experiment.message
    assert yard.kept() == ["2/10"]


def test_the_source_of_a_warm_start_is_deleted_after_what_started_from_it(yard: Yard) -> None:
    yard.warm_start(2, uuid_of(1, 20))
    yard.keep(0, 0, 1)
    yard.work_off()
    assert yard.kept() == ["1/20", "1/30", "2/30"]
    yard.delete()
    yard.work_off()
    assert yard.experiment.status == "DELETE_FAILED"
    yard.delete(2)
    yard.work_off()
    yard.delete()
    yard.work_off()
    assert yard.experiment.status == "DELETED"
    assert yard.kept() == []


def test_nothing_starts_from_a_checkpoint_that_is_going(yard: Yard) -> None:
    yard.keep(0, 0, 1)
    yard.work_off()
    with pytest.raises(Refused, match="was deleted"):
        yard.warm_start(2, uuid_of(1, 20))


def test_what_the_search_kept_goes_too(yard: Yard) -> None:
    kept = Key(EXPERIMENT, "P#search/tried/0")
    yard.table.commit([Put(kept, 1, b"[]", Expect.ABSENT)])
    yard.delete()
    yard.work_off()
    assert yard.experiment.status == "DELETED"
    assert kept.sort not in yard.rows(EXPERIMENT)
