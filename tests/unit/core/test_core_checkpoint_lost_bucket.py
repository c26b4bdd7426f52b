"""The storing of a checkpoint while the bucket is lost and created again."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from detcloud import DetcloudError
from detcloud.core import CheckpointContext
from detcloud.core.checkpoint_writer import STORES_MAX
from detcloud.shared.trial_directory import TrialSpec
from detcloud.storage.patient_store import PATIENCE
from tests.unit.storage.lost_bucket import LosableStore, Pauses, patient

FILES = {"a": b"first", "b": b"second", "c": b"third"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "trained"
    path.mkdir()
    for name, content in FILES.items():
        (path / name).write_bytes(content)
    return path


def upload(bucket: LosableStore, pauses: Pauses, folder: Path) -> list[dict[str, Any]]:
    """Store `folder` as a checkpoint, and return the reports."""
    reports: list[dict[str, Any]] = []

    def report(kind: str, **fields: object) -> None:
        reports.append({"kind": kind, **fields})

    spec = TrialSpec(experiment_id=3, trial_id=4, epoch=2)
    context = CheckpointContext(spec, patient(bucket, pauses), report, on_cluster=True)
    context.upload(folder, {"steps_completed": 7})
    return reports


# The writer puts metadata.json, the three files and manifest.json, in this order.
@pytest.mark.parametrize("lost_before", [1, 2, 4, 5])
def test_checkpoint_is_complete_after_the_loss_of_the_bucket(
    folder: Path, lost_before: int
) -> None:
    bucket, pauses = LosableStore(), Pauses()
    bucket.loses_before_put, pauses.create_after = lost_before, 2
    intent, stored = upload(bucket, pauses, folder)
    assert (intent["kind"], stored["kind"]) == ("checkpoint_intent", "checkpoint")
    place = stored["path"]
    manifest = bucket.files[f"{place}/manifest.json"]
    assert stored["manifest_sha256"] == sha256(manifest).hexdigest()
    for name, entry in json.loads(manifest)["files"].items():
        assert sha256(bucket.files[f"{place}/{name}"]).hexdigest() == entry["sha256"]
    # The puts up to the loss, a put after each of two pauses, and the puts of the four other files.
    assert bucket.puts == lost_before + 2 + 4
    assert pauses.seconds == 2 * PATIENCE.pause


def test_bucket_that_keeps_its_files_does_not_fail_the_checkpoint(folder: Path) -> None:
    """The upload in parts of a file was lost, and the files before are still stored."""
    bucket, pauses = LosableStore(), Pauses()
    bucket.lost_uploads, bucket.loses_uploads_from = STORES_MAX - 1, 3
    _, stored = upload(bucket, pauses, folder)
    assert {f"{stored['path']}/{name}" for name in FILES} <= bucket.files.keys()


def test_store_that_loses_every_upload_fails_the_checkpoint(folder: Path) -> None:
    bucket = LosableStore()
    bucket.lost_uploads = STORES_MAX
    with pytest.raises(DetcloudError, match="was not stored: storing failed"):
        upload(bucket, Pauses(), folder)
