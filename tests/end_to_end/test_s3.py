"""Checkpoints in S3, as used on a laptop."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from detcloud.shared.s3 import Bucket
from tests.emulators.seaweedfs import SECRET_KEY, SeaweedFs
from tests.end_to_end.laptop import Laptop
from tests.end_to_end.tiny_model import BATCHES, write_model
from tests.patience import wait_until

pytestmark = pytest.mark.end_to_end

# Fails half-way, after storing its progress.
TRAIN = """\
import json
from detcloud import core

with core.init() as context:
    steps = 0
    if context.info.latest_checkpoint:
        with context.checkpoint.restore_path(context.info.latest_checkpoint) as folder:
            steps = json.loads((folder / "state.json").read_text())
    print("starts at", steps, flush=True)
    for operation in context.searcher.operations():
        steps += operation.length // 2
        with context.checkpoint.store_path({"steps_completed": steps}) as (folder, uuid):
            (folder / "state.json").write_text(json.dumps(steps))
        if steps < operation.length:
            raise ArithmeticError("half way")
        context.train.report_validation_metrics(steps, {"loss": 0.5})
        operation.complete(0.5)
"""


def storage(bucket: Bucket) -> dict[str, object]:
    place = bucket.place
    return {
        "type": "s3",
        "bucket": place.name,
        "prefix": place.prefix,
        "endpoint_url": place.endpoint_url,
        "access_key": place.access_key,
        "secret_key": place.secret_key,
    }


def test_trial_resumes_from_s3_and_the_checkpoint_is_fetched_and_deleted(
    laptop: Laptop, tmp_path: Path, s3: SeaweedFs
) -> None:
    bucket = s3.bucket("of/a team")
    config, model = write_model(
        tmp_path,
        max_restarts=1,
        searcher={"name": "single", "metric": "loss", "max_length": {"batches": BATCHES}},
        checkpoint_storage=storage(bucket),
    )
    (model / "train.py").write_text(TRAIN)
    done = laptop.run("create", config, model, "--config", "hyperparameters.x=0.5", "--follow")
    assert "experiment 1 finished" in done.stdout
    log = laptop.run("trial", "logs", 1).stdout
    assert log.count("starts at 0") == log.count("ArithmeticError: half way") == 1
    assert log.count(f"starts at {BATCHES // 2}") == 1
    laptop.run("trial", "download", 1, "--latest", "-o", tmp_path / "fetched")
    assert json.loads((tmp_path / "fetched" / "state.json").read_text()) == BATCHES
    # Events of both runs of the trial; the second run stored the events of its end.
    laptop.run("tensorboard", "download", 1, "-o", tmp_path / "events")
    written = [path.read_bytes() for path in (tmp_path / "events" / "experiment-1").rglob("event*")]
    assert [b"validation/loss" in content for content in written] == [True]
    assert SECRET_KEY not in laptop.run("describe", 1).stdout
    laptop.run("delete", 1, "--yes")
    wait_until(lambda: list(bucket.list_objects("")) == [])
