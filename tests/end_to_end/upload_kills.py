"""Model directories with trials that kill themselves within a background upload.

A trial's first run traces the threads that store its checkpoints. The trial dies by SIGKILL in the
third thread, after a share `moment` of the second thread's lines, since the first thread imports
modules. With a negative `moment` the trial survives. A trial ends with the SHA-256 of its weights
as a metric.
"""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent
from typing import Any

# Batches between two checkpoints, and of a trial.
PERIOD, LENGTH = 4, 16

KILLER = """
import hashlib
import os
import signal
import sys
import threading


class Killer:
    def __init__(self, moment):
        self.moment, self.threads, self.lines = moment, [], [0]

    def trace(self, frame, event, argument):
        thread = threading.current_thread()
        if thread.name != "checkpoint-save":
            return None
        if thread not in self.threads:
            self.threads.append(thread)
            self.lines.append(0)
        if event == "line":
            self.lines[len(self.threads)] += 1
            if len(self.threads) == 3 and self.lines[3] >= self.moment * self.lines[2]:
                print("killed at", frame.f_code.co_filename, frame.f_lineno, flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
        return self.trace


def arm(context):
    latest = context.info.latest_checkpoint
    print("begins at", latest.steps_completed if latest else 0, flush=True)
    moment = context.info.hparams["moment"]
    if context.info.epoch == 1 and moment >= 0:
        threading.settrace(Killer(moment).trace)


def report_weights(context, steps, arrays):
    whole = hashlib.sha256()
    for array in arrays:
        whole.update(array.tobytes())
    context.train.report_metrics("end", steps, {"weights": whole.hexdigest()})
"""

CORE = """
import json, random, shutil
from array import array
from pathlib import Path
from killer import arm, report_weights
from detcloud import core

with core.init() as context:
    arm(context)
    draw, steps, weights = random.Random(3), 0, [0.0] * 1000
    if context.info.latest_checkpoint:
        with context.checkpoint.restore_path(context.info.latest_checkpoint) as folder:
            state = json.loads((folder / "state" / "all.json").read_text())
            steps, weights = state["steps"], state["weights"]
            draw.setstate((state["draw"][0], tuple(state["draw"][1]), state["draw"][2]))
    logs = Path("logs")
    for operation in context.searcher.operations():
        while steps < operation.length and not context.preempt.should_preempt():
            steps += 1
            weights = [it + draw.gauss(0, 1) for it in weights]
            with logs.open("a") as out:
                out.write(str(steps))
            if steps % PERIOD:
                continue
            # As a framework does it: the folder is written, and deleted before the next one.
            folder = Path("checkpoint")
            shutil.rmtree(folder, ignore_errors=True)
            (folder / "state").mkdir(parents=True)
            state = {"steps": steps, "weights": weights, "draw": draw.getstate()}
            (folder / "state" / "all.json").write_text(json.dumps(state))
            shutil.copy(logs, folder)
            metadata = {"steps_completed": steps}
            context.checkpoint.upload(folder, metadata, asynchronous=True)
        if steps < operation.length:
            break
        context.train.report_validation_metrics(steps, {"loss": sum(weights)})
        operation.complete(sum(weights))
    report_weights(context, steps, [array("d", weights)])
"""

TRANSFORMERS = """
import torch
from torch import nn
from transformers import Trainer, TrainingArguments, set_seed
from killer import arm, report_weights
from detcloud import core
from detcloud.transformers import DetCallback


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.4), nn.Linear(8, 1))

    def forward(self, values, labels):
        sums = self.layers(values)[:, 0]
        return {"loss": nn.functional.mse_loss(sums, labels), "logits": sums}


values = torch.rand(40, 6, generator=torch.Generator().manual_seed(5))
records = [{"values": one, "labels": one.sum()} for one in values]
with core.init() as context:
    arm(context)
    torch.set_num_threads(1)
    set_seed(3)
    args = TrainingArguments(
        "out", max_steps=LENGTH, per_device_train_batch_size=8, learning_rate=0.01,
        eval_strategy="steps", eval_steps=PERIOD, save_strategy="steps", save_steps=PERIOD,
        save_total_limit=1, use_cpu=True, disable_tqdm=True, report_to="none",
    )
    callback, model = DetCallback(context, args), Network()
    trainer = Trainer(
        model, args, train_dataset=records, eval_dataset=records, callbacks=[callback]
    )
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    report_weights(context, LENGTH, [one.numpy() for one in model.state_dict().values()])
"""

LIGHTNING = """
import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, TensorDataset
from killer import arm, report_weights
from detcloud import core
from detcloud.lightning import DetLogger, TrialCallback


class Network(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(6, 8), torch.nn.Dropout(0.4), torch.nn.Linear(8, 1)
        )

    def loss(self, batch):
        return torch.nn.functional.mse_loss(self.layers(batch[0])[:, 0], batch[1])

    def training_step(self, batch, number):
        return self.loss(batch)

    def validation_step(self, batch, number):
        self.log("loss", self.loss(batch))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


values = torch.rand(32, 6, generator=torch.Generator().manual_seed(5))
records = TensorDataset(values, values.sum(1))
with core.init() as context:
    arm(context)
    torch.set_num_threads(1)
    pl.seed_everything(3, verbose=False)
    callback, module = TrialCallback(context), Network()
    # An epoch, after which it validates and saves, has PERIOD batches.
    trainer = pl.Trainer(
        max_epochs=LENGTH // PERIOD, accelerator="cpu", callbacks=[callback],
        logger=DetLogger(context), enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )
    loaders = DataLoader(records, batch_size=8, shuffle=True), DataLoader(records, batch_size=32)
    trainer.fit(module, *loaders, ckpt_path=callback.latest_checkpoint())
    report_weights(context, LENGTH, [one.numpy() for one in module.state_dict().values()])
"""

KERAS = """
import keras
import numpy
from killer import arm, report_weights
from detcloud import core
from detcloud.keras import DeterminedCallback

values = numpy.random.default_rng(5).random((32, 6)).astype("float32")
sums = values.sum(1)
with core.init() as context:
    arm(context)
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Dense(8), keras.layers.Dropout(0.4), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((6,)), *layers])
    model.compile(keras.optimizers.Adam(0.01), "mse")
    info = context.info
    callback = DeterminedCallback(context, info.latest_checkpoint, info.trial_id)
    # An epoch, after which it validates and saves, has PERIOD batches.
    model.fit(
        values, sums, batch_size=8, epochs=LENGTH // PERIOD, validation_data=(values, sums),
        callbacks=[callback], verbose=0,
    )
    report_weights(context, LENGTH, model.get_weights())
"""

DEEPSPEED = """
import deepspeed
import torch
from torch.utils.data import TensorDataset
from killer import arm, report_weights
import detcloud.deepspeed
from detcloud import pytorch

values = torch.rand(40, 6, generator=torch.Generator().manual_seed(5))
records = TensorDataset(values, values.sum(1, keepdim=True))
CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "optimizer": {"type": "Adam", "params": {"lr": 0.01, "torch_adam": True}},
    "steps_per_print": 10**9,
}


class SumTrial(detcloud.deepspeed.DeepSpeedTrial):
    def __init__(self, context):
        self.context = context
        # Of the trial's own seed, which each has another one of, nothing is left.
        torch.manual_seed(3)
        layers = [torch.nn.Linear(6, 8), torch.nn.Dropout(0.4), torch.nn.Linear(8, 1)]
        model = torch.nn.Sequential(*layers)
        engine, *_ = deepspeed.initialize(
            model=model, model_parameters=model.parameters(), config=CONFIG
        )
        self.engine = context.wrap_model_engine(engine)

    def train_batch(self, batches, epoch_idx, batch_idx):
        loss = self.loss(batches)
        self.engine.backward(loss)
        self.engine.step()
        return {"loss": loss}

    def evaluate_batch(self, batches, batch_idx):
        return {"loss": self.loss(batches)}

    def loss(self, batches):
        values, sums = next(batches)
        return torch.nn.functional.mse_loss(self.engine(values), sums)

    def build_training_data_loader(self):
        return pytorch.DataLoader(records, batch_size=4)

    def build_validation_data_loader(self):
        return pytorch.DataLoader(records, batch_size=4)


with detcloud.deepspeed.init() as context:
    arm(context.core)
    torch.set_num_threads(1)
    trial = SumTrial(context)
    detcloud.deepspeed.Trainer(trial, context).fit()
    weights = trial.engine.module.state_dict().values()
    report_weights(context.core, LENGTH, [one.numpy() for one in weights])
"""

SCRIPTS = {
    "core": CORE,
    "transformers": TRANSFORMERS,
    "lightning": LIGHTNING,
    "keras": KERAS,
    "deepspeed": DEEPSPEED,
}


def write_killed_model(
    folder: Path, framework: str, moments: list[float], store: Path
) -> tuple[Path, Path]:
    """Write CONFIG and MODEL_DIR of a grid search with a trial for each moment."""
    model = folder / "model"
    model.mkdir()
    (model / "killer.py").write_text(KILLER)
    constants = f"PERIOD, LENGTH = {PERIOD}, {LENGTH}\n"
    (model / "train.py").write_text(constants + dedent(SCRIPTS[framework]))
    config: dict[str, Any] = {
        "name": f"killed uploads of {framework}",
        "entrypoint": ["python", "train.py"],
        "hyperparameters": {"moment": {"type": "categorical", "vals": moments}},
        "searcher": {"name": "grid", "metric": "loss", "max_length": {"batches": LENGTH}},
        "environment": {
            "environment_variables": ["KERAS_BACKEND=torch", "DS_ACCELERATOR=cpu"],
        },
        # As large states are stored.
        "optimizations": {"asynchronous_checkpoints": True},
        # All are kept, so that collection removes only incomplete checkpoints.
        "checkpoint_storage": {
            "type": "shared_fs",
            "host_path": str(store),
            "save_trial_latest": LENGTH,
        },
        "min_checkpoint_period": {"batches": PERIOD},
        "min_validation_period": {"batches": PERIOD},
        "scheduling_unit": PERIOD,
        # Lightning stores checkpoints by the policy alone, not by a period.
        "checkpoint_policy": "all" if framework == "lightning" else "none",
        "max_restarts": 1,
    }
    path = folder / "config.yaml"
    path.write_text(json.dumps(config, indent=1))
    return path, model
