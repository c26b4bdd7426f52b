"""Trials that sleep for a second, on two slots: the overhead of a cluster next to peers with a
process per trial.

Each trial imports torch, sleeps and reports a metric. detcloud's trial is a trial class and also
stores a checkpoint of a model.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from bench.cluster import ClusterFailed, detcloud, embedded_cluster
from bench.figures import Row, Scale, fewer, progress, row_without_target, row_without_value
from bench.peers import SLEEPER_SLOTS, SLEEPERS, measure

WHAT = "overhead of {} one-second trials on 2 slots, {}"
MODEL = """
import time

import torch
from detcloud.pytorch import DataLoader, PyTorchTrial


class Sleeper(PyTorchTrial):
    def __init__(self, context):
        self.context = context
        self.model = context.wrap_model(torch.nn.Linear(1, 1))
        context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))

    def build_training_data_loader(self):
        return DataLoader([torch.zeros(1)], batch_size=1)

    build_validation_data_loader = build_training_data_loader

    def train_batch(self, batch, epoch_idx, batch_idx):
        time.sleep(1)
        return {"loss": self.context.get_hparam("x")}

    def evaluate_batch(self, batch):
        return {"loss": self.context.get_hparam("x")}
"""
CONFIG = """
name: sleepers
entrypoint: sleepers:Sleeper
max_restarts: 0
hyperparameters:
  global_batch_size: 1
  x: {type: double, minval: 0.0, maxval: 1.0}
searcher: {name: random, metric: loss, max_trials: TRIALS, max_length: {batches: 1}}
"""


def sleepers(scale: Scale) -> Iterator[Row]:
    """Yield the time beyond the sleeping of trials, for detcloud and each peer."""
    trials = scale.sleepers
    ideal = trials / SLEEPER_SLOTS
    try:
        ours = _ours(trials) - ideal
    except ClusterFailed as error:
        yield row_without_value(WHAT.format(trials, "ours"), error)
        return
    yield row_without_target(
        WHAT.format(trials, "ours"), ours, "s", beside=f"{ours / trials * 1000:.0f} ms each"
    )
    for peer in SLEEPERS:
        with progress(f"{peer}, {trials} trials"):
            found = measure(peer, trials, seconds_max=ideal + 10.0 * trials)
        theirs = None if found.rate is None else trials / found.rate - ideal
        text = found.text if theirs is None else f"{theirs:.1f} s"
        what = WHAT.format(trials, "ours against a peer")
        yield fewer(what, ours, theirs, "s", beside=f"{found.name}: {text}")


def _ours(trials: int) -> float:
    """Seconds from the submission to the end of the search; the first trial warms the cluster."""
    with embedded_cluster("--slots", str(SLEEPER_SLOTS)) as folder:
        (model := folder / "model").mkdir()
        (model / "sleepers.py").write_text(MODEL)
        _search(folder, model, 1)
        with progress(f"{trials} trials"):
            return _search(folder, model, trials)


def _search(folder: Path, model: Path, trials: int) -> float:
    (config := folder / "config.yaml").write_text(CONFIG.replace("TRIALS", str(trials)))
    created = json.loads(detcloud(folder, "create", str(config), str(model), "--json"))
    detcloud(folder, "wait", str(created["id"]), "--polling-interval", "0.1", seconds=None)
    ended = json.loads(detcloud(folder, "describe", str(created["id"]), "--json"))
    if ended["trials"]["completed"] != trials:
        raise ClusterFailed(f"{ended['trials']} instead of {trials} completed trials")
    return float(ended["ended_ms"] - ended["created_ms"]) / 1000
