"""Folders that others write to, uploaded behind them: as they were, or not at all."""

import errno
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from detcloud import DetcloudError, core
from detcloud.core.distributed_context import DistributedContext
from detcloud.shared.trial_directory import TrialSpec
from tests.patience import ANSWER_SECONDS_MAX
from tests.unit.core.held_store import HeldStore

Line = tuple[str, dict[str, Any]]


class Uploads:
    """A checkpoint context over a store that is held, and a folder to upload."""

    def __init__(self, root: Path) -> None:
        self.store = HeldStore(root / "store")
        self.lines: list[Line] = []
        self.checkpoint = core.CheckpointContext(
            TrialSpec(trial_id=2, epoch=3), self.store, self._report, on_cluster=True
        )
        self.folder = root / "run" / "saved"
        (self.folder / "runs").mkdir(parents=True)
        (self.folder / "weights").write_text("one")
        (self.folder / "runs" / "events").write_text("a")

    def _report(self, kind: str, **fields: object) -> None:
        self.lines.append((kind, fields))

    def start(self, steps: int = 7, **options: Any) -> str:
        return self.checkpoint.upload(
            self.folder, {"steps_completed": steps}, asynchronous=True, **options
        )

    def finish(self) -> None:
        self.store.may_store.set()
        self.checkpoint.wait()

    def stored_files(self, uuid: str) -> dict[str, str]:
        with self.checkpoint.restore_path(uuid) as folder:
            return {
                path.relative_to(folder).as_posix(): path.read_text()
                for path in folder.rglob("*")
                if path.is_file() and path.name != "metadata.json"
            }


@pytest.fixture
def uploads(tmp_path: Path) -> Uploads:
    return Uploads(tmp_path)


def test_what_is_deleted_and_replaced_meanwhile_is_stored_as_it_was(uploads: Uploads) -> None:
    uuid = uploads.start()
    assert uploads.checkpoint.saves.running is not None
    # As a framework does that keeps one checkpoint, or that writes a file and moves it.
    (uploads.folder / "new").write_text("two")
    (uploads.folder / "new").rename(uploads.folder / "weights")
    (uploads.folder / "runs" / "events").unlink()
    uploads.finish()
    assert uploads.stored_files(uuid) == {"weights": "one", "runs/events": "a"}
    assert [kind for kind, _ in uploads.lines] == ["checkpoint_intent", "checkpoint"]
    # The links beside it are gone, and the folder is the framework's.
    assert [path.name for path in uploads.folder.parent.iterdir()] == ["saved"]
    assert (uploads.folder / "weights").read_text() == "two"


def test_what_is_written_on_meanwhile_fails_unless_it_was_copied(uploads: Uploads) -> None:
    for growing in (None, lambda name: name.startswith("runs/")):
        uploads.store.may_store.clear()
        uuid = uploads.start(growing=growing)
        with (uploads.folder / "runs" / "events").open("a") as events:
            events.write("b")
        if growing is None:
            with pytest.raises(DetcloudError, match="was not stored: runs/events was modified"):
                uploads.finish()
            assert [path for path in uploads.store.root.rglob("*") if path.is_file()] == []
            assert [kind for kind, _ in uploads.lines] == ["checkpoint_intent"]
        else:
            uploads.finish()
            assert uploads.stored_files(uuid) == {"weights": "one", "runs/events": "ab"}


def test_a_file_system_without_links_has_its_files_copied(
    uploads: Uploads, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    uuid = uploads.start()
    (uploads.folder / "weights").write_text("written in its place")
    uploads.finish()
    assert uploads.stored_files(uuid)["weights"] == "one"


def test_the_next_upload_waits_and_raises_what_the_one_before_failed_with(
    uploads: Uploads,
) -> None:
    (uploads.folder / "refused").touch()
    uploads.start(7)
    threading.Timer(0.05, uploads.store.may_store.set).start()
    with pytest.raises(DetcloudError, match="at batch 7 was not stored: the bucket is full"):
        uploads.start(9)
    (uploads.folder / "refused").unlink()
    # What was not begun may be tried again, and a folder that is not there is an error at once.
    uploads.start(9)
    with pytest.raises(DetcloudError, match="is not a directory: nothing can be uploaded from it"):
        uploads.checkpoint.upload(
            uploads.folder / "none", {"steps_completed": 10}, asynchronous=True
        )
    stored = [fields["steps_completed"] for kind, fields in uploads.lines if kind == "checkpoint"]
    assert stored == [9]


@pytest.mark.parametrize("fails", [False, True])
def test_the_ranks_upload_their_folders_behind_and_hear_of_one_that_cannot(
    fails: bool, run_ranks: Callable[..., list[Any]], tmp_path: Path
) -> None:
    reported: list[str] = []
    held = HeldStore(tmp_path / "store")
    everybody = threading.Barrier(3)

    def work(ranks: DistributedContext) -> str:
        def report(kind: str, **_: object) -> None:
            if ranks.rank == 0:
                reported.append(kind)

        checkpoint = core.CheckpointContext(
            TrialSpec(trial_id=2, epoch=3), held, report, on_cluster=True, distributed=ranks
        )
        # Rank 1 has no file of its own.
        folder = tmp_path / "run" / str(ranks.rank) if ranks.rank != 1 else None
        if folder is not None and not (fails and ranks.rank == 2):
            folder.mkdir(parents=True)
            (folder / f"weights{ranks.rank}").write_text(str(ranks.rank))
        metadata = {"steps_completed": 7}
        checkpoint.upload(folder, metadata, shard=True, asynchronous=True)
        metadata["steps_completed"] = 8
        assert ranks.allgather(ranks.rank) == [0, 1, 2]
        everybody.wait(ANSWER_SECONDS_MAX)
        held.may_store.set()
        try:
            checkpoint.wait()
        except DetcloudError as error:
            return str(error)
        return ""

    [failure] = set(run_ranks(work))
    manifests = list(held.root.rglob("manifest.json"))
    if fails:
        assert failure.startswith("the checkpoint was not stored: rank 2: ")
        assert (manifests, reported) == ([], [])
    else:
        assert reported == ["checkpoint_intent", "checkpoint"]
        manifest = json.loads(manifests[0].read_text())
        assert set(manifest["files"]) == {"metadata.json", "weights0", "weights2"}
        assert manifest["steps_completed"] == 7


def test_what_a_killed_run_left_goes_when_the_next_run_of_the_trial_uploads(
    uploads: Uploads, tmp_path: Path
) -> None:
    beside = uploads.folder.parent

    def folders() -> set[str]:
        return {path.name for path in beside.iterdir() if path.name.startswith(".detcloud-upload-")}

    def uploads_of(**fields: Any) -> core.CheckpointContext:
        spec = TrialSpec(cluster_id="local", **fields)
        return core.CheckpointContext(spec, uploads.store, uploads._report, on_cluster=True)

    uploads.start()
    (left,) = folders()
    metadata = {"steps_completed": 8}
    # Neither another trial's run, nor another cluster's, nor an earlier one takes it away.
    for fields in ({"trial_id": 22, "epoch": 9}, {"trial_id": 2, "epoch": 2}):
        other = uploads_of(**fields)
        other.upload(uploads.folder, metadata, asynchronous=True)
        assert left in folders()
    uploads_of(trial_id=2, epoch=4).upload(uploads.folder, metadata, asynchronous=True)
    assert left not in folders()
    # What is being uploaded by runs that are not over is there: of trial 22, and of this one.
    assert len(folders()) == 2
    assert (uploads.folder / "weights").read_text() == "one"
    uploads.store.may_store.set()


def test_what_a_trial_left_that_never_runs_again_goes_a_week_later(uploads: Uploads) -> None:
    """Nobody else uploads from that directory, or only runs of other trials and clusters."""
    beside = uploads.folder.parent
    for name, days in (("0a1b2c3d-7.1-x", 8), ("0a1b2c3d-8.1-x", 6)):
        folder = beside / f".detcloud-upload-{name}"
        folder.mkdir()
        (folder / "weights").write_text("left")
        os.utime(folder, (time.time() - days * 24 * 3600,) * 2)
    uploads.start()
    left = {path.name for path in beside.iterdir() if path.name.startswith(".detcloud-upload-0a1b")}
    assert left == {".detcloud-upload-0a1b2c3d-8.1-x"}
    uploads.finish()
