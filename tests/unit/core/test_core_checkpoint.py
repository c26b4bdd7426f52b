import errno
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from detcloud import DetcloudError
from detcloud.core import CheckpointContext, CheckpointDamaged, CheckpointReference
from detcloud.core.checkpoint_writer import CheckpointWriter, files_to_store
from detcloud.shared.checkpoint_limits import CHECKPOINT_FILES_MAX, MANIFEST_BYTES_MAX
from detcloud.shared.trial_directory import TrialSpec
from detcloud.storage import StorageError
from detcloud.storage.types.directory import DirectoryStore
from tests.unit.core.full_disk import files_of_at_most


class Trial:
    """Checkpoint context over a real store; `reports` lists the context's report lines."""

    def __init__(
        self,
        root: Path,
        *,
        on_cluster: bool = True,
        store: DirectoryStore | None = None,
        **spec: Any,
    ) -> None:
        self.reports: list[dict[str, Any]] = []
        self.root = root / "store"
        self.spec = TrialSpec(experiment_id=3, trial_id=4, epoch=2, **spec)
        self.checkpoint = CheckpointContext(
            self.spec,
            store or DirectoryStore(self.root),
            self.report,
            on_cluster=on_cluster,
        )

    def report(self, kind: str, **fields: object) -> None:
        self.reports.append({"kind": kind, **fields})

    def store(self, **files: str) -> str:
        with self.checkpoint.store_path({"steps_completed": 7, "note": "x"}) as (folder, uuid):
            for name, text in files.items():
                (folder / name).parent.mkdir(exist_ok=True)
                (folder / name).write_text(text)
        return uuid

    @property
    def reference(self) -> CheckpointReference:
        line = self.reports[-1]
        return CheckpointReference(
            line["uuid"], 4, line["path"], line["steps_completed"], line["manifest_sha256"]
        )


def test_a_checkpoint_is_announced_stored_and_reported(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    uuid = trial.store(weights="abc")
    intent, done = trial.reports
    path = f"3/4/2/{uuid}"
    assert intent == {
        "kind": "checkpoint_intent",
        "uuid": uuid,
        "steps_completed": 7,
        "path": path,
    }
    manifest = (trial.root / path / "manifest.json").read_bytes()
    metadata = (trial.root / path / "metadata.json").read_bytes()
    assert done["manifest_sha256"] == hashlib.sha256(manifest).hexdigest()
    # Two files: weights of 3 bytes, and the metadata.
    assert (done["files"], done["size_bytes"]) == (2, 3 + len(metadata))
    assert json.loads(metadata) == {"steps_completed": 7, "note": "x"} == done["metadata"]
    entry = json.loads(manifest)["files"]["weights"]
    assert entry == {"size": 3, "sha256": hashlib.sha256(b"abc").hexdigest()}


def test_restore_returns_the_stored_files(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    uuid = trial.store(**{"weights": "abc", "deep/more": "def"})
    with trial.checkpoint.restore_path(uuid) as folder:
        assert (folder / "weights").read_text() == "abc"
        assert (folder / "deep" / "more").read_text() == "def"
    assert trial.checkpoint.get_metadata(uuid)["note"] == "x"


def test_a_later_process_restores_by_reference(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    uuid = trial.store(weights="abc")
    later = Trial(tmp_path, latest_checkpoint=trial.reference)
    with later.checkpoint.restore_path(uuid) as folder:
        assert (folder / "weights").read_text() == "abc"


def test_a_changed_file_is_not_restored(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    uuid = trial.store(weights="abc")
    (trial.root / trial.reference.path / "weights").write_text("abd")
    with pytest.raises(DetcloudError, match="weights is not the file that was stored"):
        trial.checkpoint.download(uuid, tmp_path / "copy")


def test_a_changed_manifest_is_not_trusted(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    uuid = trial.store(weights="abc")
    place = trial.root / trial.reference.path / "manifest.json"
    place.write_bytes(place.read_bytes() + b"\n")
    with pytest.raises(DetcloudError, match="but the cluster recorded"):
        trial.checkpoint.get_metadata(uuid)


def test_a_checkpoint_without_a_manifest_does_not_exist(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    uuid = trial.store(weights="abc")
    (trial.root / trial.reference.path / "manifest.json").unlink()
    with pytest.raises(CheckpointDamaged, match=r"the store has no manifest.json in 3/4/2/"):
        trial.checkpoint.download(uuid, tmp_path)


def test_a_manifest_cannot_write_outside_the_folder(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    trial.store(weights="abc")
    place = trial.root / trial.reference.path / "manifest.json"
    manifest = json.loads(place.read_text())
    manifest["files"]["../escaped/file"] = manifest["files"]["weights"]
    place.write_text(json.dumps(manifest))
    unverified = CheckpointReference(trial.reference.uuid, 4, trial.reference.path)
    (tmp_path / "copy").mkdir()
    with pytest.raises(DetcloudError, match="is not a valid name of a stored file"):
        trial.checkpoint.download(unverified, tmp_path / "copy")
    assert not (tmp_path / "escaped").exists()


def test_a_failed_block_stores_and_reports_no_checkpoint(tmp_path: Path) -> None:
    trial = Trial(tmp_path)

    def fail_half_way() -> None:
        with trial.checkpoint.store_path({"steps_completed": 1}) as (folder, _):
            (folder / "half").write_text("x")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_half_way()
    assert trial.reports == []
    assert not trial.root.exists()


def test_upload_leaves_the_folder_unchanged(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "weights").write_text("abc")
    uuid = trial.checkpoint.upload(tmp_path / "mine", {"steps_completed": 1})
    assert (trial.root / f"3/4/2/{uuid}" / "weights").read_text() == "abc"
    assert list((tmp_path / "mine").iterdir()) == [tmp_path / "mine" / "weights"]
    with pytest.raises(DetcloudError, match="is not a directory"):
        trial.checkpoint.upload(tmp_path / "nowhere", {"steps_completed": 1})


@pytest.mark.parametrize("steps", [None, -1, "3", True])
def test_metadata_require_steps_completed_on_a_cluster(tmp_path: Path, steps: Any) -> None:
    trial = Trial(tmp_path)
    with (
        pytest.raises(DetcloudError, match="steps_completed"),
        trial.checkpoint.store_path({"steps_completed": steps}),
    ):
        pass


def test_oversized_metadata_are_refused_before_the_upload(
    tmp_path: Path,
) -> None:
    trial = Trial(tmp_path)
    with (
        pytest.raises(DetcloudError, match="checkpoint metadata have 300035 bytes, the limit is"),
        trial.checkpoint.store_path({"steps_completed": 1, "notes": "x" * 300_000}),
    ):
        pass
    assert trial.reports == []
    assert not (tmp_path / "store").exists()


def test_metadata_must_be_plain_data(tmp_path: Path) -> None:
    with (
        pytest.raises(DetcloudError, match=r"metadata\.thing is an object"),
        Trial(tmp_path).checkpoint.store_path({"steps_completed": 1, "thing": object()}),
    ):
        pass


def test_a_link_is_stored_as_its_target_file(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    (tmp_path / "epoch3.pt").write_text("weights")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "last.pt").symlink_to(tmp_path / "epoch3.pt")
    for asynchronous in (False, True):
        uuid = trial.checkpoint.upload(
            tmp_path / "mine", {"steps_completed": 1}, asynchronous=asynchronous
        )
        trial.checkpoint.wait()
        with trial.checkpoint.restore_path(uuid) as folder:
            assert (folder / "last.pt").read_text() == "weights"
            assert not (folder / "last.pt").is_symlink()


@pytest.mark.parametrize("target", ["nowhere", "."])
def test_broken_links_and_a_users_manifest_are_refused(tmp_path: Path, target: str) -> None:
    trial = Trial(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "manifest.json").write_text("{}")
    with pytest.raises(DetcloudError, match="the checkpoint's own file"):
        trial.checkpoint.upload(tmp_path / "mine", {"steps_completed": 1})
    (tmp_path / "mine" / "manifest.json").unlink()
    (tmp_path / "mine" / "link").symlink_to(target)
    with pytest.raises(DetcloudError, match="is a link or a special file"):
        trial.checkpoint.upload(tmp_path / "mine", {"steps_completed": 1})


def test_error_for_an_unknown_checkpoint_names_the_known(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    uuid = trial.store(weights="abc")
    with pytest.raises(DetcloudError, match=f"'other' is not known to this trial; known: {uuid}"):
        trial.checkpoint.get_metadata("other")


def test_without_a_cluster_a_uuid_is_enough(tmp_path: Path) -> None:
    trial = Trial(tmp_path, on_cluster=False)
    with trial.checkpoint.store_path() as (folder, uuid):
        (folder / "weights").write_text("abc")
    again = Trial(tmp_path, on_cluster=False)
    with again.checkpoint.restore_path(uuid) as folder:
        assert (folder / "weights").read_text() == "abc"


def test_checkpoints_are_discarded_without_storage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trial = Trial(tmp_path)
    off = CheckpointContext(TrialSpec(), None, trial.report, on_cluster=True)
    with off.store_path({"steps_completed": 1}) as (folder, _):
        (folder / "weights").write_text("abc")
    assert trial.reports == []
    assert "discarded" in capsys.readouterr().err


def test_a_full_disk_leaves_no_partial_checkpoint(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    before = trial.store(weights="abc")
    kept = trial.reference
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "small").write_text("abc")
    (tmp_path / "mine" / "weights").write_text("x" * 2000)
    with (
        pytest.raises(DetcloudError, match=r"at batch 9 was not stored: .*File too large.*latest"),
        files_of_at_most(1000),
    ):
        trial.checkpoint.upload(tmp_path / "mine", {"steps_completed": 9})
    assert trial.reports[-1]["kind"] == "checkpoint_intent"
    left = {path.parent.name for path in trial.root.rglob("*") if path.is_file()}
    assert left == {before}
    later = Trial(tmp_path, latest_checkpoint=kept)
    with later.checkpoint.restore_path(before) as folder:
        assert (folder / "weights").read_text() == "abc"
    trial.checkpoint.upload(tmp_path / "mine", {"steps_completed": 9})


class FullStore(DirectoryStore):
    """Store without space for files of a name; fails deletions if `deletes` is False."""

    def __init__(self, root: Path, name: str, *, deletes: bool = True) -> None:
        super().__init__(root)
        self.name, self.deletes = name, deletes
        self.deleted: list[str] = []

    def put(self, key: str, source: Path) -> None:
        if key.endswith(f"/{self.name}"):
            raise StorageError(f"storing {key!r}: {os.strerror(errno.ENOSPC)}")
        super().put(key, source)

    def delete(self, key: str) -> None:
        self.deleted.append(key)
        if not self.deletes:
            raise StorageError("no answer")
        super().delete(key)


@pytest.mark.parametrize("name", ["manifest.json", "metadata.json", "weights"])
def test_error_of_a_full_device_is_named_for_any_file(tmp_path: Path, name: str) -> None:
    trial = Trial(tmp_path, store=FullStore(tmp_path / "store", name))
    with pytest.raises(DetcloudError, match=r"was not stored: .*No space left on device"):
        trial.store(weights="abc")
    assert trial.reports[-1]["kind"] == "checkpoint_intent"
    assert [path for path in trial.root.rglob("*") if path.is_file()] == []


def test_cleanup_stops_after_the_first_failed_deletion(tmp_path: Path) -> None:
    store = FullStore(tmp_path / "store", "d", deletes=False)
    trial = Trial(tmp_path, store=store)
    with pytest.raises(DetcloudError, match="was not stored"):
        trial.store(a="a", b="b", c="c", d="d")
    # Four files were stored, including the metadata; only the first deletion is attempted.
    assert len([path for path in trial.root.rglob("*") if path.is_file()]) == 4
    assert [key.rpartition("/")[2] for key in store.deleted] == ["metadata.json"]


def test_existing_files_in_a_checkpoint_folder_are_kept(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    writer = CheckpointWriter(trial.spec, DirectoryStore(trial.root), trial.report)
    weights = tmp_path / "weights"
    metadata = {"steps_completed": 7, "note": "x"}
    folder = trial.root / "3/4/2/taken"
    folder.mkdir(parents=True)
    (folder / "stray").write_text("theirs")
    weights.write_text("abc")
    stored = writer.store_files("taken", {"weights": weights}, metadata)
    with trial.checkpoint.restore_path(stored) as restored:
        assert sorted(path.name for path in restored.iterdir()) == ["metadata.json", "weights"]
    weights.write_text("def")
    with pytest.raises(DetcloudError, match=r"was not stored: .*metadata.json exists already"):
        writer.store_files("taken", {"weights": weights}, metadata)
    assert trial.checkpoint.get_metadata(stored)["note"] == "x"
    assert (folder / "weights").read_text() == "abc"


@pytest.mark.parametrize("name", ["two words", "größe/каталог", "100%s {x} 'q'"])
def test_store_path_may_have_spaces_and_unicode(tmp_path: Path, name: str) -> None:
    trial = Trial(tmp_path / name)
    uuid = trial.store(**{"the weights ü.pth": "abc"})
    with trial.checkpoint.restore_path(uuid) as folder:
        assert (folder / "the weights ü.pth").read_text() == "abc"


def test_error_for_a_missing_file_names_its_size(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    uuid = trial.store(weights="abc")
    (trial.root / trial.reference.path / "weights").unlink()
    with pytest.raises(DetcloudError, match=r"has no weights in .* lists 3 bytes"):
        trial.checkpoint.download(uuid, tmp_path / "copy")


def test_a_selector_filters_uploaded_and_restored_files(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    mine = tmp_path / "mine"
    (mine / "deep").mkdir(parents=True)
    (mine / "deep" / "weights").write_text("abc")
    (mine / "log").write_text("x")
    (mine / "link").symlink_to("/etc/passwd")
    uuid = trial.checkpoint.upload(
        mine, {"steps_completed": 1}, selector=lambda name: name.startswith("deep/")
    )
    manifest = json.loads((trial.root / trial.reference.path / "manifest.json").read_text())
    assert set(manifest["files"]) == {"deep/weights", "metadata.json"}
    with trial.checkpoint.restore_path(uuid, selector=lambda name: "weights" in name) as folder:
        assert [path.name for path in folder.rglob("*") if path.is_file()] == ["weights"]


def test_checkpoints_are_deleted_only_without_a_cluster(tmp_path: Path) -> None:
    trial = Trial(tmp_path, on_cluster=False)
    uuid = trial.store(weights="abc")
    trial.checkpoint.delete(uuid)
    assert not (trial.root / "3").exists()
    with pytest.raises(DetcloudError, match="does not exist"):
        trial.checkpoint.get_metadata(uuid)
    on_cluster = Trial(tmp_path)
    uuid = on_cluster.store(weights="abc")
    with pytest.raises(DetcloudError, match="use `detcloud checkpoint delete`"):
        on_cluster.checkpoint.delete(uuid)
    assert on_cluster.checkpoint.get_metadata(uuid)["note"] == "x"


def test_too_many_files_are_refused_before_the_upload(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    # The metadata is a file of the checkpoint as well.
    for n in range(CHECKPOINT_FILES_MAX - 1):
        (folder / f"{n}.bin").touch()
    assert len(files_to_store(folder, None)) == CHECKPOINT_FILES_MAX - 1
    (folder / "more.bin").touch()
    trial = Trial(tmp_path)
    with pytest.raises(DetcloudError, match=f"has {CHECKPOINT_FILES_MAX} files, the limit is"):
        trial.checkpoint.upload(folder, {"steps_completed": 2})
    assert trial.reports == []


def test_an_oversized_manifest_is_not_stored(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    writer = CheckpointWriter(trial.spec, DirectoryStore(trial.root), trial.report)
    metadata = {"steps_completed": 1, "text": "x" * MANIFEST_BYTES_MAX}
    with pytest.raises(DetcloudError, match=f"the limit is {MANIFEST_BYTES_MAX}: store"):
        writer.store_files("large", {}, metadata)
    assert [path for path in trial.root.rglob("*") if path.is_file()] == []


class GrowingFile(DirectoryStore):
    """Store that appends to the source file `log` after each of `times` uploads of `log`."""

    def __init__(self, root: Path, times: int) -> None:
        super().__init__(root)
        self.left = times

    def put(self, key: str, source: Path) -> None:
        super().put(key, source)
        if source.name == "log" and self.left:
            self.left -= 1
            with source.open("a") as file:
                file.write("more")


def test_a_file_that_grows_during_the_upload_is_stored_again(tmp_path: Path) -> None:
    trial = Trial(tmp_path, store=GrowingFile(tmp_path / "store", times=2))
    uuid = trial.store(log="abc", weights="x")
    with trial.checkpoint.restore_path(uuid) as folder:
        assert (folder / "log").read_text() == "abcmoremore"


def test_an_endlessly_growing_file_fails_the_checkpoint(tmp_path: Path) -> None:
    trial = Trial(tmp_path, store=GrowingFile(tmp_path / "store", times=1_000))
    with pytest.raises(DetcloudError, match="log was modified each of 3 times"):
        trial.store(log="abc", weights="x")
    assert DirectoryStore(trial.root).list("3") == {}
    assert [line["kind"] for line in trial.reports] == ["checkpoint_intent"]


def nest_folders(folder: Path) -> None:
    """Create a folder below `folder` whose path exceeds the 4096 bytes that Linux can read."""
    place = os.open(folder, os.O_RDONLY)
    for depth in range(25):
        name = f"{depth:0200}"
        os.mkdir(name, dir_fd=place)
        deeper = os.open(name, os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = deeper
    os.close(place)


def test_an_unreadable_folder_is_an_error(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "weights").write_text("abc")
    nest_folders(folder)
    with pytest.raises(DetcloudError, match=r"cannot be read: File name too long"):
        trial.checkpoint.upload(folder, {"steps_completed": 7})
    assert DirectoryStore(trial.root).list("3") == {}


@pytest.mark.parametrize(
    "name", [b"weights\xff", b"a\x7fb", "a\u0085b".encode(), "\u00fc".encode() * 121]
)
def test_nonportable_file_names_are_refused_before_the_upload(tmp_path: Path, name: bytes) -> None:
    trial = Trial(tmp_path)
    folder = tmp_path / "folder"
    for part in range(5):
        folder /= "x" * 200 if len(name) > 100 else str(part)
    folder.mkdir(parents=True)
    (Path(os.fsdecode(folder)) / os.fsdecode(name)).write_text("x")
    with pytest.raises(DetcloudError, match="not a valid name of a stored file"):
        trial.checkpoint.upload(tmp_path / "folder", {"steps_completed": 1})
    assert DirectoryStore(trial.root).list("3") == {}
