"""A real cluster whose bucket of checkpoints is lost under trials that train and that start."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from detcloud.client import Client, Experiment, Trial
from tests.emulators.fake_gcs import FakeGcs
from tests.emulators.ministack import Ministack, ministack
from tests.integration.embedded_cluster import EmbeddedCluster
from tests.patience import ANSWER_SECONDS_MAX, wait_until

pytestmark = [pytest.mark.end_to_end, pytest.mark.nightly]

# Saves every second batch, and waits for the file `go` before batch WAIT + 1.
TRAIN = """
import json, pathlib, sys, time
from detcloud import core

wait, go = int(sys.argv[1]), pathlib.Path(sys.argv[2])

with core.init() as context:
    steps = context.info.steps_completed
    if context.info.latest_checkpoint:
        with context.checkpoint.restore_path(context.info.latest_checkpoint) as folder:
            assert json.loads((folder / "steps.json").read_text()) == steps
    print("begins at", steps, flush=True)
    for operation in context.searcher.operations():
        while steps < operation.length and not context.preempt.should_preempt():
            if steps == wait and not go.exists():
                time.sleep(0.02)
                continue
            steps += 1
            if steps % 2 == 0:
                context.train.report_validation_metrics(steps, {"loss": steps})
                with context.checkpoint.store_path({"steps_completed": steps}) as (folder, uuid):
                    (folder / "steps.json").write_text(json.dumps(steps))
        if steps < operation.length:
            break
        operation.complete(steps)
"""
BATCHES = 10
WAIT = 6


class S3Bucket:
    """A bucket of ministack."""

    def __init__(self, aws: Ministack) -> None:
        self._s3 = aws.client("s3")
        self.storage = {
            "type": "s3",
            "bucket": "checkpoints",
            "endpoint_url": aws.url,
            "access_key": aws.key,
            "secret_key": aws.secret,
        }
        self.environment: list[str] = []
        self.create()

    def create(self) -> None:
        self._s3.create_bucket(Bucket="checkpoints")

    def lose(self) -> dict[str, bytes]:
        """Delete the bucket, and return the objects."""
        lost = {}
        for key in self.names():
            place = {"Bucket": "checkpoints", "Key": key}
            lost[key] = self._s3.get_object(**place)["Body"].read()
            self._s3.delete_object(**place)
        self._s3.delete_bucket(Bucket="checkpoints")
        return lost

    def names(self) -> list[str]:
        listing = self._s3.list_objects_v2(Bucket="checkpoints")
        return [content["Key"] for content in listing.get("Contents", ())]

    def restore(self, lost: dict[str, bytes]) -> None:
        for key, content in lost.items():
            self._s3.put_object(Bucket="checkpoints", Key=key, Body=content)


class GoogleBucket:
    """A bucket of fake-gcs-server."""

    def __init__(self, gcs: FakeGcs) -> None:
        self._gcs = gcs
        self._name = gcs.new_bucket()
        self._place = f"{gcs.url}/storage/v1/b/{self._name}"
        self.storage = {"type": "gcs", "bucket": self._name}
        self.environment = [f"STORAGE_EMULATOR_HOST={gcs.url}"]

    def create(self) -> None:
        self._gcs.new_bucket(self._name)

    def lose(self) -> dict[str, bytes]:
        """Delete the bucket, and return the objects."""
        lost = {}
        for name in self.names():
            place = f"{self._place}/o/{quote(name, safe='')}"
            lost[name] = self._request("GET", f"{place}?alt=media")
            self._request("DELETE", place)
        self._request("DELETE", self._place)
        return lost

    def names(self) -> list[str]:
        listing = json.loads(self._request("GET", f"{self._place}/o"))
        return [item["name"] for item in listing.get("items", ())]

    def restore(self, lost: dict[str, bytes]) -> None:
        for name, content in lost.items():
            self._gcs.upload(self._name, name, content)

    def _request(self, method: str, url: str) -> bytes:
        request = urllib.request.Request(url, method=method)
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS_MAX) as answer:
            content: bytes = answer.read()
            return content


@pytest.fixture(params=["s3", "gcs"])
def bucket(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if request.param == "gcs":
        yield GoogleBucket(request.getfixturevalue("gcs"))
        return
    with ministack(tmp_path) as aws:
        yield S3Bucket(aws)


@pytest.fixture
def client(bucket: Any, tmp_path: Path) -> Iterator[Client]:
    cluster = EmbeddedCluster(tmp_path / "home")
    yield cluster.start()
    cluster.end()


def submit(client: Client, bucket: Any, folder: Path) -> Experiment:
    """Submit a trial that waits after the sixth batch, with three checkpoints."""
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    fields = {"name": "single", "metric": "loss", "max_length": {"batches": BATCHES}}
    return client.create_experiment(
        {
            "name": folder.name,
            "entrypoint": ["python", "train.py", str(WAIT), f"{folder}.go"],
            "searcher": fields,
            "checkpoint_storage": {**bucket.storage, "save_trial_latest": 100},
            "environment": {"environment_variables": bucket.environment},
            "max_restarts": 0,
        },
        folder,
    )


def await_trial(experiment: Experiment) -> Trial:
    """Return the trial of an experiment once it waits, with all checkpoints recorded."""
    [trial] = wait_until(lambda: list(experiment.trials()))
    wait_until(lambda: len(list(trial.checkpoints())) == WAIT // 2)
    return trial


def await_line(trial: Trial, text: str) -> None:
    wait_until(lambda: text in "".join(trial.logs()), what=text)


def has_ended(experiment: Experiment) -> bool:
    experiment.refresh()
    return experiment.has_ended


def test_trials_survive_the_loss_of_the_bucket(client: Client, bucket: Any, tmp_path: Path) -> None:
    training = submit(client, bucket, tmp_path / "training")
    starting = submit(client, bucket, tmp_path / "starting")
    training_trial, starting_trial = await_trial(training), await_trial(starting)
    starting.pause()

    def has_left() -> bool:
        starting_trial.refresh()
        return starting_trial.data["allocation"] is None

    wait_until(has_left)
    lost = bucket.lose()
    for name in ("training", "starting"):
        (tmp_path / f"{name}.go").touch()
    starting.activate()
    await_line(training_trial, "waiting until the bucket exists again")
    await_line(starting_trial, "waiting for the files of this trial")
    bucket.create()
    # The trial that trains stores its work in the new bucket, and ends.
    wait_until(lambda: has_ended(training))
    assert not has_ended(starting)
    bucket.restore(lost)
    wait_until(lambda: has_ended(starting))
    for experiment, begins in ((training, 1), (starting, 2)):
        [trial] = experiment.trials()
        assert (experiment.state, trial.data["restarts"]) == ("COMPLETED", 0)
        assert trial.recent_damages == []
        stored = sorted(int(one.data["steps_completed"]) for one in trial.checkpoints())
        # Each checkpoint was stored once, so that no batch was trained again.
        assert stored == [2, 4, 6, 8, 10]
        assert {one.state for one in trial.checkpoints()} == {"COMPLETED"}
        assert "".join(trial.logs()).count("begins at") == begins
