"""Background uploads of folders that change meanwhile: stored unchanged, or not at all."""

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
    """Checkpoint context over a HeldStore, and a folder to upload; `lines` lists the reports."""

    def __init__(self, root: Path) -> None:
        self.store = HeldStore(root / "store")
        self.lines: list[Line] = []
        self.checkpoint = core.CheckpointContext(
            TrialSpec(trial_id=2, epoch=3), self.store, self.report, on_cluster=True
        )
        self.folder = root / "run" / "saved"
        (self.folder / "runs").mkdir(parents=True)
        (self.folder / "weights").write_text("one")
        (self.folder / "runs" / "events").write_text("a")

    def report(self, kind: str, **fields: object) -> None:
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


def test_files_deleted_during_the_upload_are_stored_unchanged(uploads: Uploads) -> None:
    uuid = uploads.start()
    assert uploads.checkpoint.saves.running is not None
    # Frameworks delete old checkpoints, or replace a file by a rename.
    (uploads.folder / "new").write_text("two")
    (uploads.folder / "new").rename(uploads.folder / "weights")
    (uploads.folder / "runs" / "events").unlink()
    uploads.finish()
    assert uploads.stored_files(uuid) == {"weights": "one", "runs/events": "a"}
    assert [kind for kind, _ in uploads.lines] == ["checkpoint_intent", "checkpoint"]
    # The temporary links are deleted; the folder itself is unchanged by the upload.
    assert [path.name for path in uploads.folder.parent.iterdir()] == ["saved"]
    assert (uploads.folder / "weights").read_text() == "two"


def test_a_file_appended_during_the_upload_fails_unless_declared_growing(uploads: Uploads) -> None:
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


def test_files_are_copied_if_links_are_unsupported(
    uploads: Uploads, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    uuid = uploads.start()
    (uploads.folder / "weights").write_text("written in its place")
    uploads.finish()
    assert uploads.stored_files(uuid)["weights"] == "one"


def test_the_next_upload_raises_the_error_of_the_previous_upload(
    uploads: Uploads,
) -> None:
    (uploads.folder / "refused").touch()
    uploads.start(7)
    threading.Timer(0.05, uploads.store.may_store.set).start()
    with pytest.raises(DetcloudError, match="at batch 7 was not stored: the bucket is full"):
        uploads.start(9)
    (uploads.folder / "refused").unlink()
    # The upload that was refused may be repeated. A missing folder is an immediate error.
    uploads.start(9)
    with pytest.raises(DetcloudError, match="is not a directory: nothing can be uploaded from it"):
        uploads.checkpoint.upload(
            uploads.folder / "none", {"steps_completed": 10}, asynchronous=True
        )
    stored = [fields["steps_completed"] for kind, fields in uploads.lines if kind == "checkpoint"]
    assert stored == [9]


@pytest.mark.parametrize("fails", [False, True])
def test_background_sharded_upload_fails_on_all_ranks_together(
    fails: bool, run_ranks: Callable[..., list[Any]], tmp_path: Path
) -> None:
    reported: list[str] = []
    store = HeldStore(tmp_path / "store")
    all_ranks = threading.Barrier(3)

    def work(ranks: DistributedContext) -> str:
        def report(kind: str, **_: object) -> None:
            if ranks.rank == 0:
                reported.append(kind)

        checkpoint = core.CheckpointContext(
            TrialSpec(trial_id=2, epoch=3), store, report, on_cluster=True, distributed=ranks
        )
        # Rank 1 has no file.
        folder = tmp_path / "run" / str(ranks.rank) if ranks.rank != 1 else None
        if folder is not None and not (fails and ranks.rank == 2):
            folder.mkdir(parents=True)
            (folder / f"weights{ranks.rank}").write_text(str(ranks.rank))
        metadata = {"steps_completed": 7}
        checkpoint.upload(folder, metadata, shard=True, asynchronous=True)
        metadata["steps_completed"] = 8
        assert ranks.allgather(ranks.rank) == [0, 1, 2]
        all_ranks.wait(ANSWER_SECONDS_MAX)
        store.may_store.set()
        try:
            checkpoint.wait()
        except DetcloudError as error:
            return str(error)
        return ""

    [failure] = set(run_ranks(work))
    manifests = list(store.root.rglob("manifest.json"))
    if fails:
        assert failure.startswith("the checkpoint was not stored: rank 2: ")
        assert (manifests, reported) == ([], [])
    else:
        assert reported == ["checkpoint_intent", "checkpoint"]
        manifest = json.loads(manifests[0].read_text())
        assert set(manifest["files"]) == {"metadata.json", "weights0", "weights2"}
        assert manifest["steps_completed"] == 7


def test_remains_of_a_killed_run_are_deleted_by_the_trials_next_run(
    uploads: Uploads, tmp_path: Path
) -> None:
    beside = uploads.folder.parent

    def folders() -> set[str]:
        return {path.name for path in beside.iterdir() if path.name.startswith(".detcloud-upload-")}

    def uploads_of(**fields: Any) -> core.CheckpointContext:
        spec = TrialSpec(cluster_id="local", **fields)
        return core.CheckpointContext(spec, uploads.store, uploads.report, on_cluster=True)

    uploads.start()
    (left,) = folders()
    metadata = {"steps_completed": 8}
    # A run of trial 22 and an earlier run of trial 2 leave the folder.
    for fields in ({"trial_id": 22, "epoch": 9}, {"trial_id": 2, "epoch": 2}):
        other = uploads_of(**fields)
        other.upload(uploads.folder, metadata, asynchronous=True)
        assert left in folders()
    uploads_of(trial_id=2, epoch=4).upload(uploads.folder, metadata, asynchronous=True)
    assert left not in folders()
    # The running uploads of trial 22 and of trial 2 keep their folders.
    assert len(folders()) == 2
    assert (uploads.folder / "weights").read_text() == "one"
    uploads.store.may_store.set()


def test_remains_of_other_trials_are_deleted_after_a_week(uploads: Uploads) -> None:
    """Delete the folder of age 8 days and keep the folder of age 6 days, both of other trials."""
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
