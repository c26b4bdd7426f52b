"""Damage of a stored checkpoint: detection, similar errors that are no damage, and reports."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from detcloud import DetcloudError, core
from detcloud.core import CheckpointContext, CheckpointDamaged, CheckpointReference
from detcloud.core.distributed_context import DistributedContext
from detcloud.shared.bucket_errors import AccessDenied, BucketError
from detcloud.shared.transfers import Digest, hash_file
from detcloud.shared.trial_directory import TrialSpec
from detcloud.storage import CheckpointStore, StorageError
from detcloud.storage.bucket_store import BucketStore
from detcloud.storage.types.directory import DirectoryStore
from tests.unit.core.trial_files import enter, make_trial, reports

CONTENT = b"0123456789"


class Run:
    """Run of a trial that begins from a checkpoint stored in a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.reports: list[dict[str, Any]] = []
        (root / "trained").mkdir(parents=True)
        (root / "trained" / "weights.pth").write_bytes(CONTENT)
        writer = self.context(TrialSpec(experiment_id=3, trial_id=4, epoch=1))
        writer.upload(root / "trained", {"steps_completed": 7})
        line = self.reports[-1]
        self.reference = CheckpointReference(
            line["uuid"], 4, line["path"], 7, line["manifest_sha256"]
        )
        self.reports.clear()

    @property
    def folder(self) -> Path:
        return self.root / "store" / self.reference.path

    def restore(self, store: CheckpointStore | None = None, **options: Any) -> None:
        """Restore the checkpoint as the trial's second run, or as the run of option `spec`."""
        spec = options.pop("spec", None) or TrialSpec(
            experiment_id=3, trial_id=4, epoch=2, latest_checkpoint=self.reference
        )
        context = self.context(spec, store, **options)
        with context.restore_path(self.reference) as folder:
            assert (folder / "weights.pth").read_bytes() == CONTENT

    def context(
        self, spec: TrialSpec, store: CheckpointStore | None = None, **options: Any
    ) -> CheckpointContext:
        options = {"on_cluster": True, **options}
        opened = store or DirectoryStore(self.root / "store")
        return CheckpointContext(spec, opened, self.report, **options)

    def report(self, kind: str, **fields: object) -> None:
        self.reports.append({"kind": kind, **fields})


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def cut_short(folder: Path) -> None:
    os.truncate(folder / "weights.pth", 4)


def flip_a_bit(folder: Path) -> None:
    (folder / "weights.pth").write_bytes(b"1" + CONTENT[1:])


def lose_a_file(folder: Path) -> None:
    (folder / "weights.pth").unlink()


def lose_the_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()


def change_the_manifest(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"]["weights.pth"]["size"] = 4
    (folder / "manifest.json").write_text(json.dumps(manifest))


def lose_everything(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


@pytest.mark.parametrize(
    ("harm", "cause"),
    [
        (cut_short, "weights.pth is not the file that was stored: 4 bytes"),
        (flip_a_bit, "weights.pth is not the file that was stored: 10 bytes"),
        (lose_a_file, "the store has no weights.pth"),
        (lose_the_manifest, "the store has no manifest.json"),
        (change_the_manifest, "but the cluster recorded"),
        (lose_everything, "the store has no manifest.json"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_damage_of_the_runs_start_checkpoint_is_reported(
    run: Run, harm: Callable[[Path], None], cause: str, capsys: pytest.CaptureFixture[str]
) -> None:
    harm(run.folder)
    with pytest.raises(CheckpointDamaged, match=f"{run.reference.uuid} is damaged"):
        run.restore()
    (line,) = run.reports
    assert (line["kind"], line["uuid"]) == ("checkpoint_damage", run.reference.uuid)
    assert cause in line["message"]
    assert len(line["message"]) <= 500
    assert f"[detcloud] checkpoint {run.reference.uuid} is damaged: " in capsys.readouterr().err


def test_intact_files_are_restored_without_a_report(run: Run) -> None:
    run.restore()
    assert run.reports == []


def test_a_missing_mount_is_no_damage(run: Run) -> None:
    (run.root / "store").rename(run.root / "elsewhere")
    (run.root / "store").mkdir()
    with pytest.raises(StorageError, match=r"manifest.json cannot be read"):
        run.restore()
    assert run.reports == []


def test_an_unreadable_file_is_no_damage(run: Run) -> None:
    (run.folder / "weights.pth").unlink()
    (run.folder / "weights.pth").mkdir()
    with pytest.raises(StorageError, match=r"weights.pth cannot be read"):
        run.restore()
    assert run.reports == []


class Bucket:
    """Bucket over the files of a folder store.

    `refusal` is raised by fetches and lists; the next `garbled` fetches return wrong content.
    """

    place = "s3://bucket"

    def __init__(self, root: Path) -> None:
        self._store = DirectoryStore(root)
        self.refusal: BucketError | None = None
        self.garbled = 0

    def send(self, key: str, source: Path) -> bool:
        self._store.put(key, source)
        return True

    def delete(self, key: str) -> None:
        self._store.delete(key)

    def object_size(self, key: str) -> int | None:
        raise AccessDenied("403")

    def fetch(self, key: str, destination: Path, digest: Digest | None = None) -> None:
        if self.refusal is not None or key not in self._store.list(key):
            raise self.refusal or AccessDenied("403")
        self._store.get(key, destination)
        if self.garbled:
            self.garbled -= 1
            destination.write_bytes(b"garbled on its way")
        if digest is not None:
            hash_file(destination, digest)

    def list_objects(self, prefix: str) -> Any:
        if self.refusal is not None:
            raise self.refusal
        return iter(self._store.list(prefix.rstrip("/")).items())


def test_access_denied_for_an_unlisted_file_is_damage(run: Run) -> None:
    lose_a_file(run.folder)
    with pytest.raises(CheckpointDamaged, match=r"the store has no weights.pth"):
        run.restore(BucketStore(Bucket(run.root / "store")))
    assert [line["kind"] for line in run.reports] == ["checkpoint_damage"]


def test_a_lost_checkpoint_among_others_is_damage(run: Run) -> None:
    lose_everything(run.folder)
    (run.folder.parent / "another").mkdir()
    (run.folder.parent / "another" / "weights.pth").write_bytes(CONTENT)
    with pytest.raises(CheckpointDamaged, match=r"the store has no manifest.json"):
        run.restore(BucketStore(Bucket(run.root / "store")))
    assert [line["kind"] for line in run.reports] == ["checkpoint_damage"]


def test_errors_of_a_bucket_are_no_damage(run: Run) -> None:
    bucket = Bucket(run.root / "store")
    for refusal in (AccessDenied("403"), BucketError("503")):
        bucket.refusal = refusal
        with pytest.raises(StorageError, match=r"manifest.json cannot be read"):
            run.restore(BucketStore(bucket))
    assert run.reports == []


def test_a_bucket_without_any_file_of_the_trial_is_no_damage(run: Run) -> None:
    """The bucket was lost and created again, and its objects are not restored yet."""
    shutil.rmtree(run.root / "store")
    (run.root / "store").mkdir()
    with pytest.raises(StorageError, match=r"manifest.json cannot be read"):
        run.restore(BucketStore(Bucket(run.root / "store")))
    assert run.reports == []


def test_a_single_garbled_transfer_is_no_damage(run: Run) -> None:
    bucket = Bucket(run.root / "store")
    bucket.garbled = 1
    run.restore(BucketStore(bucket))
    assert run.reports == []


def test_only_the_chief_reports_damage_of_the_start_checkpoint(run: Run) -> None:
    cut_short(run.folder)
    spec = TrialSpec(experiment_id=3, trial_id=4, epoch=2, latest_checkpoint=run.reference)
    others: list[dict[str, Any]] = [
        {"spec": TrialSpec(experiment_id=3, trial_id=4, epoch=2)},
        {"spec": spec, "distributed": DistributedContext(rank=1, size=2)},
        {"spec": spec, "on_cluster": False},
    ]
    for options in others:
        with pytest.raises(CheckpointDamaged):
            run.restore(**options)
    assert run.reports == []


def test_damage_is_reported_before_the_exit(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_short(run.folder)
    reference = {
        name: getattr(run.reference, name)
        for name in ("uuid", "trial_id", "path", "steps_completed", "manifest_sha256")
    }
    trial = make_trial(run.root, epoch=2, latest_checkpoint=reference, steps_completed=7)
    enter(trial, monkeypatch)

    def restore() -> None:
        with core.init() as context, context.checkpoint.restore_path(run.reference):
            raise AssertionError("the block is not entered")

    with pytest.raises(DetcloudError, match="is damaged"):
        restore()
    damage, end = reports(trial)
    assert (damage["kind"], damage["uuid"]) == ("checkpoint_damage", run.reference.uuid)
    assert (end["kind"], end["reason"]) == ("exit", "errored")
    assert end["message"].startswith("CheckpointDamaged: checkpoint ")
