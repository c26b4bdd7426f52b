"""A trial of two processes with a data set cached in S3, which dies within an epoch."""

from __future__ import annotations

import json
import re
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from detcloud.shared.bucket_place import BucketPlace
from tests.conftest import require
from tests.emulators.seaweedfs import SeaweedFs
from tests.end_to_end.laptop import Laptop

pytestmark = pytest.mark.end_to_end

SAMPLES, BATCH, BATCHES = 24, 4, 9
SAVED_AT, DIES_AT = 4, 6
# Each of two processes has 2 samples a batch; an epoch is 24 / 4 = 6 batches of both.
MODEL = f"""\
import os, signal
import torch
from detcloud import pytorch

class Numbers:
    def __len__(self):
        return {SAMPLES}
    def __getitem__(self, number):
        print("computes", number, flush=True)
        return torch.tensor([number / {SAMPLES}]), number

class Trial(pytorch.PyTorchTrial):
    def __init__(self, context):
        self.context = context
        self.model = context.wrap_model(torch.nn.Linear(1, 1))
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))

    def build_training_data_loader(self):
        @self.context.experimental.cache_train_dataset("numbers", "v1", shuffle=True)
        def make_dataset():
            return Numbers()
        return pytorch.DataLoader(make_dataset(), self.context.get_per_slot_batch_size())

    def build_validation_data_loader(self):
        return pytorch.DataLoader([(torch.ones(1), 1)] * 2)

    def train_batch(self, batch, epoch_idx, batch_idx):
        info = self.context.core.info
        print("run", info.epoch, "batch", batch_idx, "has", *batch[1].tolist(), flush=True)
        if (info.epoch, batch_idx, self.context.distributed.rank) == (1, {DIES_AT}, 1):
            os.kill(os.getpid(), signal.SIGKILL)
        loss = self.model(batch[0]).square().mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {{"loss": loss}}

    def evaluate_batch(self, batch):
        return {{"loss": self.model(batch[0]).mean()}}
"""


def configuration(data: BucketPlace, checkpoints: BucketPlace) -> dict[str, Any]:
    keys = ("endpoint_url", "access_key", "secret_key")
    storage = {name: getattr(checkpoints, name) for name in keys}
    return {
        "name": "cached",
        "entrypoint": "model_def:Trial",
        "hyperparameters": {"global_batch_size": BATCH},
        "searcher": {"name": "single", "metric": "loss", "max_length": {"batches": BATCHES}},
        "scheduling_unit": 2,
        "min_checkpoint_period": {"batches": SAVED_AT},
        "max_restarts": 1,
        "resources": {"slots_per_trial": 2},
        "environment": {
            "environment_variables": [
                f"AWS_ACCESS_KEY_ID={data.access_key}",
                f"AWS_SECRET_ACCESS_KEY={data.secret_key}",
                "AWS_DEFAULT_REGION=eu-west-3",
            ]
        },
        "data_layer": {
            "type": "s3",
            "bucket": data.name,
            "bucket_directory_path": "sets",
            "endpoint_url": data.endpoint_url,
        },
        "checkpoint_storage": {"type": "s3", "bucket": checkpoints.name, **storage},
    }


def batches(log: str, run: int) -> dict[int, set[tuple[int, ...]]]:
    """Return the samples of each process of a run, by the number of the batch."""
    found: dict[int, set[tuple[int, ...]]] = {}
    for batch, samples in re.findall(rf"run {run} batch (\d+) has ([\d ]+)", log):
        found.setdefault(int(batch), set()).add(tuple(map(int, samples.split())))
    return found


@pytest.mark.nightly
def test_trial_that_died_within_an_epoch_resumes_with_the_planned_samples(
    laptop: Laptop, tmp_path: Path, s3: SeaweedFs
) -> None:
    torch: Any = require("torch")
    from detcloud.pytorch import DataLoader

    data, checkpoints = s3.guest_place("data"), s3.guest_place("checkpoints")
    model = tmp_path / "model"
    model.mkdir()
    (model / "model_def.py").write_text(MODEL)
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps(configuration(data, checkpoints)))
    laptop.run("up", "--slots", 2)
    done = laptop.run("create", config, model, "--follow")
    assert "experiment 1 finished" in done.stdout
    log = laptop.run("trial", "logs", 1).stdout
    # Each sample was computed once, by either process, and not again after the crash.
    assert sorted(map(int, re.findall(r"computes (\d+)", log))) == list(range(SAMPLES))
    assert len(re.findall("24 samples are read from", log)) == 1
    seed = laptop.json("trial", "describe", 1)["seed"]
    loader = DataLoader(torch.arange(SAMPLES), batch_size=BATCH // 2, shuffle=True)
    shares = [
        [
            tuple(item.tolist())
            for item in islice(loader.share(rank, 2).batches_from(0, seed), BATCHES)
        ]
        for rank in range(2)
    ]
    expected = {number: {share[number] for share in shares} for number in range(BATCHES)}
    first, second = batches(log, 1), batches(log, 2)
    assert {number: first[number] for number in range(DIES_AT)} == {
        number: expected[number] for number in range(DIES_AT)
    }
    assert second == {number: expected[number] for number in range(SAVED_AT, BATCHES)}
