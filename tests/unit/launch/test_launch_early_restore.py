from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from detcloud import core
from detcloud.core import CheckpointDamaged, CheckpointReference
from detcloud.core.checkpoint_reader import CheckpointReader
from detcloud.launch.early_restore import begin_early_restore
from detcloud.shared.early_download import end_early_download, find_early_download
from detcloud.shared.trial_directory import TEMPORARY_FOLDER_VARIABLE
from tests.unit.core.trial_files import enter, make_trial, reports


@pytest.fixture(autouse=True)
def processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the machine have as many processors as an early restore needs."""
    monkeypatch.setattr("os.cpu_count", lambda: 4)


@pytest.fixture
def reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CheckpointReference]:
    """A checkpoint of the trial's first run. This process is the second run."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv(TEMPORARY_FOLDER_VARIABLE, str(tmp_path / "tmp"))
    trial = make_trial(tmp_path)
    enter(trial, monkeypatch)
    (trained := tmp_path / "trained").mkdir()
    (trained / "deep").mkdir()
    (trained / "weights.pth").write_bytes(b"weights")
    (trained / "deep" / "rank0").write_bytes(b"state")
    with core.init() as context:
        context.checkpoint.upload(trained, {"steps_completed": 7})
    (stored,) = reports(trial, "checkpoint")
    found = CheckpointReference(stored["uuid"], 4, stored["path"], 7, stored["manifest_sha256"])
    (trial / "out" / "report-0.jsonl").unlink()
    make_trial(tmp_path, epoch=2, latest_checkpoint=asdict(found))
    yield found
    if (early := find_early_download(found)) is not None:
        end_early_download(early)


@pytest.fixture
def fetched_names(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the names of the files that this process, but no child, fetches from the store."""
    names: list[str] = []
    get = CheckpointReader._get

    def record(self: CheckpointReader, name: str, *rest: Any) -> Any:
        names.append(name)
        return get(self, name, *rest)

    # Children that were forked before have the original method.
    monkeypatch.setattr(CheckpointReader, "_get", record)
    return names


@pytest.fixture
def begun_checkpoint(reference: CheckpointReference) -> CheckpointReference:
    begin_early_restore()
    assert find_early_download(reference) is not None
    return reference


def restored_files(reference: CheckpointReference) -> dict[str, bytes]:
    with core.init() as context, context.checkpoint.restore_path(reference.uuid) as folder:
        assert context.checkpoint.get_metadata(reference.uuid)["steps_completed"] == 7
        paths = (path for path in folder.rglob("*") if path.is_file())
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def test_restore_uses_the_early_download(
    begun_checkpoint: CheckpointReference, fetched_names: list[str], tmp_path: Path
) -> None:
    files = restored_files(begun_checkpoint)
    assert files.keys() == {"weights.pth", "deep/rank0", "metadata.json"}
    assert (files["weights.pth"], files["deep/rank0"]) == (b"weights", b"state")
    # The metadata are read after the restore, which has ended the early download.
    assert fetched_names == ["manifest.json"]
    assert list((tmp_path / "tmp").iterdir()) == []


def test_second_restore_uses_the_store(
    begun_checkpoint: CheckpointReference, fetched_names: list[str]
) -> None:
    restored_files(begun_checkpoint)
    fetched_names.clear()
    assert restored_files(begun_checkpoint).keys() == {"weights.pth", "deep/rank0", "metadata.json"}
    assert {"weights.pth", "deep/rank0", "metadata.json"} <= set(fetched_names)


def test_selected_files_are_those_of_the_early_download(
    begun_checkpoint: CheckpointReference, fetched_names: list[str], tmp_path: Path
) -> None:
    with core.init() as context:
        target = tmp_path / "target"
        context.checkpoint.download(
            begun_checkpoint.uuid, target, selector=lambda name: name == "weights.pth"
        )
    assert [path.name for path in target.iterdir()] == ["weights.pth"]
    assert fetched_names == []


def test_damage_is_found_by_the_usual_download(
    reference: CheckpointReference, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "store" / reference.path / "weights.pth").write_bytes(b"other")
    begin_early_restore()
    with pytest.raises(CheckpointDamaged, match=r"weights\.pth is not the file"):
        restored_files(reference)
    (damage,) = reports(tmp_path / "trial", "checkpoint_damage")
    assert damage["uuid"] == reference.uuid
    assert "is downloaded now: CheckpointDamaged" in capsys.readouterr().out
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize("variable", ["LOCAL_RANK", "HOROVOD_LOCAL_RANK"])
def test_other_processes_of_the_node_begin_no_download(
    reference: CheckpointReference, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "1")
    begin_early_restore()
    assert find_early_download(reference) is None


@pytest.mark.parametrize("missing", [{"latest_checkpoint": None}, {"storage": None}])
def test_nothing_is_downloaded_without_a_checkpoint_or_a_store(
    reference: CheckpointReference, tmp_path: Path, missing: dict[str, None]
) -> None:
    make_trial(tmp_path, **{"epoch": 2, "latest_checkpoint": asdict(reference), **missing})
    begin_early_restore()
    assert find_early_download(reference) is None


def test_small_machine_downloads_nothing_during_the_imports(
    reference: CheckpointReference, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    begin_early_restore()
    assert find_early_download(reference) is None


def test_without_a_cluster_nothing_is_downloaded(
    reference: CheckpointReference, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DETCLOUD_TRIAL_DIR")
    begin_early_restore()
    assert find_early_download(reference) is None
