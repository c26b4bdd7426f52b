"""Exports of model versions: contents, and removal of a failed export."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from detcloud import DetcloudError
from detcloud.client import Client
from detcloud.client.model import ModelVersion
from detcloud.client.model_export import load_call, read_load_data
from detcloud.client.records import CheckpointFile
from detcloud.shared.files import sha256_of
from tests.unit.client.fake_cluster import TOKEN, FakeCluster

UUID = "12345678-aaaa"
CONTENTS = {"weights/a.bin": b"weights", "state.json": b"4"}
CONFIG = {"name": "digits", "searcher": {"name": "single"}}


@pytest.fixture
def version(fake: FakeCluster, model_dir: Path) -> Iterator[ModelVersion]:
    """Yield version 2 of `digits`, with a checkpoint of CONTENTS."""
    with Client(fake.url, TOKEN) as client:
        client.create_experiment(CONFIG, model_dir)
        fake.add_checkpoint(UUID, CONTENTS)
        fields = {"model": "digits", "number": 2, "name": "second", "checkpoint_uuid": UUID}
        yield ModelVersion(client, {**fields, "trial_id": 1, "experiment_id": 1})


def test_export_contains_checkpoint_code_and_configuration(
    fake: FakeCluster, version: ModelVersion, tmp_path: Path
) -> None:
    fake.checkpoints[0]["metadata"] = {"framework": "keras-3.1"}
    calls: list[tuple[int, int]] = []
    manifest = version.export(tmp_path / "a/b", lambda done, total: calls.append((done, total)))
    folder = tmp_path / "a/b"
    assert sorted(path.name for path in folder.iterdir()) == [
        "checkpoint",
        "code",
        "config.yaml",
        "manifest.json",
    ]
    assert json.loads((folder / "manifest.json").read_text()) == manifest
    assert (folder / "code/model_def.py").read_text() == "print('hello')\n"
    assert yaml.safe_load((folder / "config.yaml").read_text()) == CONFIG
    # 7 + 1 bytes.
    assert calls[-1] == (8, 8)
    assert (manifest["model"], manifest["version"], manifest["name"]) == ("digits", 2, "second")
    assert manifest["checkpoint"]["uuid"] == UUID
    listed = {file["path"]: file["sha256"] for file in manifest["checkpoint"]["files"]}
    assert listed == {path: sha256_of(folder / "checkpoint" / path) for path in CONTENTS}
    assert manifest["code"]["sha256"] in fake.objects
    assert manifest["hparams"] == {"lr": 0.1, "net": {"layers": 3}}
    assert manifest["framework"]["name"] == "keras-3.1"
    # No trial class wrote the checkpoint.
    assert (manifest["framework"]["trial_class"], manifest["load"]) == (None, None)


def test_export_requires_a_new_or_empty_folder(
    version: ModelVersion, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    monkeypatch.chdir(folder)
    version.export(".")
    assert (folder / "manifest.json").exists()
    with pytest.raises(DetcloudError, match="is not empty; name a folder that is new or empty"):
        version.export(folder)
    with pytest.raises(DetcloudError, match=r"manifest\.json could not be written: Not a dir"):
        version.export(folder / "manifest.json")


def test_a_failed_export_leaves_no_files(
    fake: FakeCluster, version: ModelVersion, tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    # The download of the checkpoint succeeds, but the code has another hash.
    digest = fake.experiments[0]["code_sha256"]
    fake.objects[digest] += b"x"
    for folder in (empty, tmp_path / "new"):
        with pytest.raises(DetcloudError, match="SHA-256 that differs"):
            version.export(folder)
    assert list(empty.iterdir()) == []
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("is_new", [True, False])
def test_a_second_export_into_the_same_folder_is_refused(
    fake: FakeCluster, version: ModelVersion, tmp_path: Path, is_new: bool
) -> None:
    folder = tmp_path / "export"
    if not is_new:
        folder.mkdir()
    refusals: list[str] = []

    def export_meanwhile(_done: int, _total: int) -> None:
        """Try a second export before the first export is moved to its folder."""
        if not refusals:
            with pytest.raises(DetcloudError) as refused:
                version.export(folder)
            refusals.append(str(refused.value))

    version.export(folder, export_meanwhile)
    assert "another export is being written there" in refusals[0]
    assert sorted(path.name for path in folder.iterdir()) == [
        "checkpoint",
        "code",
        "config.yaml",
        "manifest.json",
    ]
    assert (folder / "checkpoint/weights/a.bin").read_bytes() == b"weights"


def test_a_failed_export_keeps_foreign_files(version: ModelVersion, tmp_path: Path) -> None:
    folder = tmp_path / "new"

    def put_meanwhile(_done: int, _total: int) -> None:
        (folder / "notes.txt").write_text("mine")
        (folder / "config.yaml").write_text("mine too")

    with pytest.raises(DetcloudError, match=r"config\.yaml was put there by something else"):
        version.export(folder, put_meanwhile)
    left = {path.name: path.read_text() for path in folder.iterdir()}
    assert left == {"notes.txt": "mine", "config.yaml": "mine too"}


def _files(*paths: str) -> list[CheckpointFile]:
    return [{"path": path, "size": 1, "sha256": "", "url": ""} for path in paths]


def test_load_call_depends_on_type_and_files() -> None:
    trial = {"trial_type": "PyTorchTrial"}
    plain = load_call(trial, _files("state_dict.pth", "code/model_def.py"))
    assert plain == (
        "from detcloud import pytorch\n"
        'trial = pytorch.load_trial_from_checkpoint_path("checkpoint")'
    )
    # A checkpoint without a copy of the code imports the exported `code` folder.
    assert load_call(trial, _files("state_dict.pth")) == (
        f'import sys\nsys.path.insert(0, "code")\n{plain}'
    )
    # Checkpoints of DeepSpeed have one state per process.
    assert load_call(trial, _files("rank0/state_dict.pth", "code/model_def.py")) is None
    assert load_call(None, _files("state_dict.pth")) is None


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"trial_type": "TFKerasTrial"}', "[" * 100_000],
    ids=["broken", "list", "other", "deep"],
)
def test_malformed_load_data_is_ignored(text: str, tmp_path: Path) -> None:
    (tmp_path / "load_data.json").write_text(text)
    assert read_load_data(tmp_path) is None
