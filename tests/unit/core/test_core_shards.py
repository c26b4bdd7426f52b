"""Checkpoints that several ranks store together: a single checkpoint, or an error on all ranks."""

import shutil
from pathlib import Path
from threading import Lock
from typing import Any

import pytest

from detcloud import DetcloudError, core
from detcloud.core.distributed_context import DistributedContext
from detcloud.storage import StorageError, StoreReplaced
from detcloud.storage.types.directory import DirectoryStore


class Ranks:
    """Checkpoint contexts of a trial's ranks; `reports` lists the rank and kind of each report."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = DirectoryStore(root)
        self.reports: list[tuple[int, str]] = []

    def checkpoint(self, ranks: DistributedContext) -> core.CheckpointContext:
        """Return the checkpoint context of a rank."""
        spec = core.TrialSpec(experiment_id=1, trial_id=2, epoch=3)
        report = lambda kind, **_: self.reports.append((ranks.rank, kind))  # noqa: E731
        return core.CheckpointContext(spec, self.store, report, on_cluster=True, distributed=ranks)

    def files(self) -> set[str]:
        """Return the names of all files in the store."""
        return {path.name for path in self.root.rglob("*") if path.is_file()}


@pytest.fixture
def trial(tmp_path: Path) -> Ranks:
    (tmp_path / "store").mkdir()
    return Ranks(tmp_path / "store")


def store(checkpoint: core.CheckpointContext, rank: int, **files: str) -> str:
    metadata = {"steps_completed": 7, "ranks": {str(rank): rank}}
    with checkpoint.store_path(metadata, shard=True) as (folder, uuid):
        for name, text in files.items():
            (folder / name).write_text(text)
    return uuid


def error_of(work: Any) -> str:
    try:
        work()
    except DetcloudError as error:
        return str(error)
    return ""


def test_shards_of_all_ranks_form_a_single_checkpoint(run_ranks: Any, trial: Ranks) -> None:
    def work(ranks: DistributedContext) -> Any:
        checkpoint = trial.checkpoint(ranks)
        uuid = store(checkpoint, ranks.rank, **{f"weights{ranks.rank}": "w", "same": "s"})
        with checkpoint.restore_path(uuid) as folder:
            names = sorted(path.name for path in folder.iterdir())
            return uuid, names, checkpoint.get_metadata(uuid), folder

    results = run_ranks(work)
    names = ["metadata.json", "same", "weights0", "weights1", "weights2"]
    metadata = {"steps_completed": 7, "ranks": {"0": 0, "1": 1, "2": 2}}
    assert len({uuid for uuid, *_ in results}) == 1
    assert all(result[1:3] == (names, metadata) for result in results)
    # The ranks of a node share a copy, which is deleted after the last rank.
    [folder] = {folder for *_, folder in results}
    assert not folder.exists()
    assert [kind for rank, kind in trial.reports if rank == 0] == [
        "checkpoint_intent",
        "checkpoint",
    ]


def test_ranks_may_download_separate_copies(run_ranks: Any, trial: Ranks) -> None:
    def work(ranks: DistributedContext) -> Any:
        checkpoint = trial.checkpoint(ranks)
        uuid = store(checkpoint, ranks.rank, **{str(ranks.rank): "w"})
        mode = core.DownloadMode.NoSharedDownload
        with checkpoint.restore_path(uuid, mode, selector=lambda name: name == "1") as folder:
            return folder, [path.name for path in folder.iterdir()]

    results = run_ranks(work)
    assert len({folder for folder, _ in results}) == 3
    assert [names for _, names in results] == [["1"]] * 3


def test_conflicting_files_are_refused_on_all_ranks(run_ranks: Any, trial: Ranks) -> None:
    def work(ranks: DistributedContext) -> str:
        text = "odd" if ranks.rank == 2 else "even"
        return error_of(lambda: store(trial.checkpoint(ranks), ranks.rank, weights=text))

    [text] = set(run_ranks(work))
    assert text.startswith("ranks 0 and 2 store different files as weights: ")
    assert trial.files() == set()
    assert trial.reports == []


def test_conflicting_metadata_are_refused(run_ranks: Any, trial: Ranks, tmp_path: Path) -> None:
    def work(ranks: DistributedContext) -> str:
        metadata = {"steps_completed": 7, "deep": {"x": ranks.rank // 2}}
        checkpoint = trial.checkpoint(ranks)
        # Only rank 0 has files.
        folder = tmp_path if ranks.rank == 0 else None
        return error_of(lambda: checkpoint.upload(folder, metadata, shard=True))

    [text] = set(run_ranks(work))
    assert text.startswith("rank 2 stores the checkpoint with metadata deep.x = 1, a rank below")


def test_a_rank_that_raises_prevents_the_checkpoint(run_ranks: Any, trial: Ranks) -> None:
    def work(ranks: DistributedContext) -> str:
        checkpoint = trial.checkpoint(ranks)
        try:
            with checkpoint.store_path({"steps_completed": 7}, shard=True) as (folder, _):
                (folder / str(ranks.rank)).write_text("w")
                if ranks.rank == 1:
                    raise ArithmeticError("1 / 0")
        except (ArithmeticError, DetcloudError) as error:
            return f"{type(error).__name__}: {error}"
        return ""

    other = "DetcloudError: the checkpoint was not stored: rank 1: ArithmeticError: 1 / 0"
    assert run_ranks(work) == [other, "ArithmeticError: 1 / 0", other]
    assert trial.files() == set()


class ReplacedStore(DirectoryStore):
    """A store that is lost with all files at the first put of the file `weights1`."""

    was_lost = False
    # A folder that is removed under a write of another rank would be an error of the folder.
    lock = Lock()

    def put(self, key: str, source: Path) -> None:
        with self.lock:
            if key.endswith("/weights1") and not self.was_lost:
                self.was_lost = True
                shutil.rmtree(self.root / "1", ignore_errors=True)
                raise StoreReplaced("the bucket lacks earlier files")
            super().put(key, source)


def test_all_ranks_store_their_files_again_in_a_replaced_store(
    run_ranks: Any, trial: Ranks
) -> None:
    trial.store = ReplacedStore(trial.root)

    def work(ranks: DistributedContext) -> str:
        checkpoint = trial.checkpoint(ranks)
        return error_of(lambda: store(checkpoint, ranks.rank, **{f"weights{ranks.rank}": "w"}))

    assert run_ranks(work) == [""] * 3
    names = {"manifest.json", "metadata.json", "weights0", "weights1", "weights2"}
    assert trial.files() == names
    assert trial.reports.count((0, "checkpoint")) == 1


class FullStore(DirectoryStore):
    """Store without space for files of the name `2`."""

    def put(self, key: str, source: Path) -> None:
        if key.endswith("/2"):
            raise StorageError("no space left")
        super().put(key, source)


def test_a_failed_rank_removes_the_files_of_all_ranks(run_ranks: Any, trial: Ranks) -> None:
    trial.store = FullStore(trial.root)

    def work(ranks: DistributedContext) -> str:
        checkpoint = trial.checkpoint(ranks)
        return error_of(lambda: store(checkpoint, ranks.rank, **{str(ranks.rank): "w"}))

    [text] = set(run_ranks(work))
    assert (
        "was not stored: rank 2: no space left; the previous checkpoint is still the latest" in text
    )
    assert trial.files() == set()
    assert "checkpoint" not in {kind for _, kind in trial.reports}


def test_failed_download_of_the_chief_fails_all_ranks(
    run_ranks: Any, trial: Ranks, tmp_path: Path
) -> None:
    def work(ranks: DistributedContext) -> str:
        checkpoint = trial.checkpoint(ranks)
        return error_of(lambda: checkpoint.download("unknown", tmp_path / "there"))

    texts = run_ranks(work)
    assert all("checkpoint 'unknown' is not known to this trial" in text for text in texts)


def test_ranks_of_a_node_share_selected_files(run_ranks: Any, trial: Ranks) -> None:
    def work(ranks: DistributedContext) -> Any:
        checkpoint = trial.checkpoint(ranks)
        uuid = store(checkpoint, ranks.rank, **{f"weights{ranks.rank}": "w"})
        own = lambda name: name == f"weights{ranks.rank}"  # noqa: E731
        selectors = [own, None if ranks.rank == 1 else own]
        listings = []
        for selector in selectors:
            # Scripts for Determined may name the mode by its value.
            mode: Any = "LOCAL_WORKERS_SHARE_DOWNLOAD"
            with checkpoint.restore_path(uuid, mode, selector=selector) as folder:
                listings.append(sorted(path.name for path in folder.iterdir()))
                ranks.allgather(None)
        return listings

    # Rank 1 has no selector in the second round, so the ranks get all files.
    weights = ["weights0", "weights1", "weights2"]
    assert run_ranks(work) == [[weights, ["metadata.json", *weights]]] * 3


def test_a_failing_selector_fails_all_ranks(run_ranks: Any, trial: Ranks) -> None:
    def refuse(_: str) -> bool:
        raise KeyError("mine")

    def work(ranks: DistributedContext) -> Any:
        checkpoint = trial.checkpoint(ranks)
        uuid = store(checkpoint, ranks.rank, weights="w")
        selector = refuse if ranks.rank == 1 else None
        try:
            checkpoint.download(uuid, trial.root / "copy", selector=selector)
        except (DetcloudError, KeyError) as error:
            return repr(error)

    first, failed, third = run_ranks(work)
    assert "rank 1: KeyError('mine')" in first
    assert failed == "KeyError('mine')"
    assert "the first process of this node could not fetch it" in third


def test_unknown_download_mode_is_refused(trial: Ranks) -> None:
    checkpoint = trial.checkpoint(DistributedContext())
    uuid = checkpoint.upload(trial.root, {"steps_completed": 1})
    wrong: Any = "NOWHERE"
    with pytest.raises(ValueError, match="NOWHERE"):
        checkpoint.download(uuid, trial.root / "copy", wrong)


def test_a_sharded_upload_without_a_directory_is_refused_on_all_ranks(
    run_ranks: Any, trial: Ranks
) -> None:
    def work(ranks: DistributedContext) -> Any:
        with pytest.raises(RuntimeError, match="directory on no rank"):
            trial.checkpoint(ranks).upload(None, {"steps_completed": 1}, shard=True)

    run_ranks(work)
    assert trial.files() == set()


@pytest.mark.parametrize("shard", [False, True])
def test_upload_without_a_directory_is_a_runtime_error(trial: Ranks, shard: bool) -> None:
    with pytest.raises(RuntimeError, match="needs a directory"):
        trial.checkpoint(DistributedContext()).upload(None, {"steps_completed": 1}, shard=shard)


def test_upload_errors_are_runtime_errors_as_in_determined(run_ranks: Any, trial: Ranks) -> None:
    def work(ranks: DistributedContext) -> Any:
        checkpoint = trial.checkpoint(ranks)
        for files, metadata in (
            ({"same": str(ranks.rank)}, {"steps_completed": 7}),
            ({}, {"steps_completed": ranks.rank}),
        ):
            place = pytest.raises(RuntimeError)
            with place, checkpoint.store_path(metadata, shard=True) as (folder, _):
                for name, text in files.items():
                    (folder / name).write_text(text)
        if ranks.rank:
            with pytest.raises(RuntimeError, match="only the chief"):
                checkpoint.upload(trial.root, {"steps_completed": 7})
        with pytest.raises(RuntimeError, match="selector"):
            checkpoint.upload(None, {}, shard=True, selector=bool)
        return True

    assert run_ranks(work) == [True] * 3
    assert trial.files() == set()


def test_missing_steps_completed_is_a_value_error(trial: Ranks) -> None:
    checkpoint = trial.checkpoint(DistributedContext())
    with pytest.raises(ValueError, match="steps_completed None"), checkpoint.store_path({}):
        raise AssertionError("the block is not entered")
    assert trial.reports == []
