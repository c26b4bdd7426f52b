"""Model directories of scripts for each API, with random numbers in the training.

As in `noisy_model`, the last rank of the first run waits before a fixed batch while a file exists.
A trial ends with its weights as a metric.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.end_to_end.noisy_model import EPOCH, HELD_AT, LENGTH, PERIOD

NOISE = f"""
import time
from pathlib import Path

LENGTH, PERIOD, EPOCH, BATCH = {LENGTH}, {PERIOD}, {EPOCH}, 8


def greet(context):
    ranks = context.distributed
    print(f"rank {{ranks.rank}} of {{ranks.size}} on node {{ranks.cross_rank}}", flush=True)


def hold(context, batch):
    ranks, info = context.distributed, context.info
    place = Path(info.hparams["hold"])
    is_last = ranks.rank == ranks.size - 1
    if batch != {HELD_AT} or not is_last or info.epoch > 1 or not place.exists():
        return
    print(f"rank {{ranks.rank}} holds", flush=True)
    while place.exists() and not is_stop_known(context.preempt):
        time.sleep(0.02)


def is_stop_known(preempt):
    # The few batches that are left take less time than to agree on where to stop.
    agreement = preempt._agreement
    return preempt.is_requested() if agreement is None else agreement.request is not None


def report_weights(context, arrays):
    numbers = [float(it) for one in arrays for it in one.reshape(-1)]
    # What has diverged would be like anything else that has.
    assert all(abs(it) < 100 for it in numbers), numbers
    context.train.report_metrics("end", LENGTH, {{"weights": numbers}})


def records():
    import torch

    values = torch.rand(EPOCH * BATCH, 6, generator=torch.Generator().manual_seed(5))
    return values, values.sum(1, keepdim=True)


def network():
    from torch import nn

    return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.4), nn.Linear(8, 1))
"""

CORE = """
import torch
from torch import distributed
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from noise import BATCH, EPOCH, LENGTH, PERIOD, greet, hold, network, records, report_weights
from detcloud import core

with core.init() as context:
    greet(context)
    ranks, steps, loss = context.distributed, 0, torch.zeros(())
    torch.manual_seed(3)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9)
    torch.manual_seed(100 + ranks.rank)
    if context.info.latest_checkpoint:
        with context.checkpoint.restore_path(context.info.latest_checkpoint) as folder:
            state = torch.load(folder / "state.pth")
            torch.set_rng_state(torch.load(folder / f"generator-{ranks.rank}.pth"))
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        steps = context.info.steps_completed
    trained = model
    if ranks.size > 1:
        distributed.init_process_group("gloo")
        trained = DistributedDataParallel(model)
    values, sums = records()
    size = BATCH // ranks.size

    def save():
        metadata = {"steps_completed": steps}
        shard = ranks.size > 1
        with context.checkpoint.store_path(metadata, shard=shard, asynchronous=True) as stored:
            folder = stored[0]
            if ranks.rank == 0:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save(state, folder / "state.pth")
            torch.save(torch.get_rng_state(), folder / f"generator-{ranks.rank}.pth")

    for operation in context.searcher.operations():
        length = operation.length * (EPOCH if operation.unit == "epochs" else 1)
        while steps < length and not context.preempt.should_preempt():
            hold(context, steps)
            at = torch.randint(len(values), (size,))
            optimizer.zero_grad()
            loss = mse_loss(trained(values[at]), sums[at])
            loss.backward()
            optimizer.step()
            steps += 1
            context.train.report_training_metrics(steps, {"loss": loss.item()})
            if steps % PERIOD == 0 and steps < length:
                save()
        save()
        if steps < length:
            break
        context.train.report_validation_metrics(steps, {"loss": loss.item()})
        operation.complete(loss.item())
    if steps == LENGTH:
        report_weights(context, model.state_dict().values())
"""

KERAS = """
import keras
import torch
from torch import distributed
from noise import BATCH, EPOCH, LENGTH, greet, hold, records, report_weights
from detcloud import core
from detcloud.keras import DeterminedCallback


class Averaging(keras.optimizers.SGD):
    def apply(self, grads, trainable_variables=None):
        # Keras on torch leaves that to the code.
        for grad in grads if distributed.is_initialized() else ():
            distributed.all_reduce(grad)
            grad /= distributed.get_world_size()
        super().apply(grads, trainable_variables)


class Hold(keras.callbacks.Callback):
    def __init__(self, context):
        super().__init__()
        self.context, self.epoch = context, 0

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        hold(self.context, EPOCH * self.epoch + batch)


with core.init() as context:
    greet(context)
    ranks = context.distributed
    if ranks.size > 1:
        distributed.init_process_group("gloo")
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Dense(8), keras.layers.Dropout(0.4), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((6,)), *layers])
    model.compile(Averaging(0.005, momentum=0.9), "mse")
    keras.utils.set_random_seed(100 + ranks.rank)
    values, sums = (one.numpy() for one in records())
    info = context.info
    callback = DeterminedCallback(context, info.latest_checkpoint, info.trial_id)
    model.fit(
        values[ranks.rank :: ranks.size], sums[ranks.rank :: ranks.size],
        batch_size=BATCH // ranks.size, epochs=LENGTH // EPOCH, validation_data=(values, sums),
        callbacks=[Hold(context), callback], verbose=0,
    )
    if not context.preempt.was_seen:
        report_weights(context, model.get_weights())
"""

TRANSFORMERS = """
import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed
from noise import BATCH, EPOCH, LENGTH, PERIOD, greet, hold, network, records, report_weights
from detcloud import core
from detcloud.transformers import DetCallback


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = network()

    def forward(self, values, labels):
        sums = self.layers(values)
        return {"loss": nn.functional.mse_loss(sums, labels), "logits": sums}


class Hold(TrainerCallback):
    def __init__(self, context):
        self.context = context

    def on_train_begin(self, args, state, control, **kwargs):
        # The Trainer seeds all ranks alike; a checkpoint's generators come after this.
        torch.manual_seed(100 + self.context.distributed.rank)

    def on_step_begin(self, args, state, control, **kwargs):
        hold(self.context, state.global_step)


pairs = [{"values": value, "labels": label} for value, label in zip(*records())]
with core.init() as context:
    greet(context)
    set_seed(3)
    in_epochs = "epochs" in context.info.config["searcher"]["max_length"]
    length = {"num_train_epochs": LENGTH // EPOCH} if in_epochs else {"max_steps": LENGTH}
    args = TrainingArguments(
        "out", **length, learning_rate=0.01, use_cpu=True, disable_tqdm=True,
        per_device_train_batch_size=BATCH // context.distributed.size, report_to="none",
        eval_strategy="steps", eval_steps=PERIOD, save_strategy="steps", save_steps=PERIOD,
        save_total_limit=1,
    )
    callback, model = DetCallback(context, args), Network()
    trainer = Trainer(
        model, args, train_dataset=pairs, eval_dataset=pairs, callbacks=[Hold(context), callback]
    )
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    report_weights(context, [one.detach() for one in model.state_dict().values()])
"""

LIGHTNING = """
import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, TensorDataset
from noise import BATCH, EPOCH, LENGTH, greet, hold, network, records, report_weights
from detcloud import core
from detcloud.lightning import DetLogger, TrialCallback


class Network(pl.LightningModule):
    def __init__(self, context):
        super().__init__()
        self.context, self.layers = context, network()

    def loss(self, batch):
        return torch.nn.functional.mse_loss(self.layers(batch[0]), batch[1])

    def training_step(self, batch, number):
        hold(self.context, self.trainer.global_step)
        return self.loss(batch)

    def validation_step(self, batch, number):
        self.log("loss", self.loss(batch), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


with core.init() as context:
    greet(context)
    ranks, data = context.distributed, TensorDataset(*records())
    pl.seed_everything(3, verbose=False)
    callback, module = TrialCallback(context), Network(context)
    torch.manual_seed(100 + ranks.rank)
    trainer = pl.Trainer(
        max_epochs=LENGTH // EPOCH, accelerator="cpu", callbacks=[callback],
        logger=DetLogger(context), enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, devices=ranks.local_size, num_nodes=ranks.cross_size,
        strategy="ddp" if ranks.size > 1 else "auto",
    )
    size = BATCH // ranks.size
    loaders = DataLoader(data, batch_size=size, shuffle=True), DataLoader(data, batch_size=size)
    trainer.fit(module, *loaders, ckpt_path=callback.latest_checkpoint())
    if not callback.is_unfinished:
        report_weights(context, module.state_dict().values())
"""

DEEPSPEED = """
import os

import deepspeed
import torch
from torch.utils.data import TensorDataset
from noise import BATCH, greet, hold, network, records, report_weights
import detcloud.deepspeed
from detcloud import pytorch


def join(ranks):
    places = {"RANK": ranks.rank, "WORLD_SIZE": ranks.size, "LOCAL_RANK": ranks.local_rank}
    for name, value in {**places, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 0}.items():
        os.environ.setdefault(name, str(value))
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False)


class SumTrial(detcloud.deepspeed.DeepSpeedTrial):
    def __init__(self, context):
        if "DET_MANUAL_INIT_DISTRIBUTED" in os.environ:
            join(context.distributed)
        self.context, model = context, network()
        config = {
            "train_micro_batch_size_per_gpu": self.micro_batch_size(),
            "gradient_accumulation_steps": 2,
            "optimizer": {"type": "Adam", "params": {"lr": 0.01, "torch_adam": True}},
            "steps_per_print": 10**9,
        }
        engine, *_ = deepspeed.initialize(
            model=model, model_parameters=model.parameters(), config=config
        )
        self.engine = context.wrap_model_engine(engine)
        self.held = -1

    def micro_batch_size(self):
        return BATCH // (2 * self.context.distributed.size)

    def train_batch(self, batches, epoch_idx, batch_idx):
        if self.held < batch_idx:
            self.held = batch_idx
            hold(self.context.core, batch_idx)
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
        data = TensorDataset(*records())
        return pytorch.DataLoader(data, batch_size=self.micro_batch_size(), shuffle=True)

    def build_validation_data_loader(self):
        return pytorch.DataLoader(TensorDataset(*records()), batch_size=4)


with detcloud.deepspeed.init() as context:
    greet(context.core)
    trial = SumTrial(context)
    detcloud.deepspeed.Trainer(trial, context).fit()
    if not context.core.preempt.was_seen:
        weights = trial.engine.module.state_dict().values()
        report_weights(context.core, [one.float() for one in weights])
"""

SCRIPTS = {
    "core": CORE,
    "keras": KERAS,
    "transformers": TRANSFORMERS,
    "lightning": LIGHTNING,
    "deepspeed": DEEPSPEED,
}
# Keras and Lightning name the metric so, and the Trainer like this.
METRICS = {"transformers": "eval_loss"}
# The batch at which a pause takes effect: a script and the Trainer check after each batch, others
# at the end of their workload or epoch.
PAUSE_BATCHES = {"core": HELD_AT + 1, "transformers": HELD_AT + 1}


def write_noisy_script(folder: Path, api: str, slots: int) -> tuple[Path, Path]:
    """Write CONFIG and MODEL_DIR of a script on `slots` slots.

    The file `folder/hold` makes the script wait. `API-epochs` counts in epochs, whose batches only
    the script knows; `deepspeed-manual` joins its process group itself.
    """
    script, _, form = api.partition("-")
    unit, batches = ("epochs", EPOCH) if form == "epochs" else ("batches", 1)
    period = {unit: PERIOD // batches}
    model = folder / "model"
    model.mkdir(parents=True)
    (model / "noise.py").write_text(NOISE)
    (model / "train.py").write_text(SCRIPTS[script])
    config: dict[str, Any] = {
        "name": f"noisy {api}",
        "entrypoint": "python3 -m detcloud.launch.torch_distributed train.py",
        "resources": {"slots_per_trial": slots},
        "hyperparameters": {"global_batch_size": 8, "hold": str(folder / "hold")},
        "searcher": {
            "name": "single",
            "metric": METRICS.get(script, "loss"),
            "max_length": {unit: LENGTH // batches},
        },
        "environment": {
            "environment_variables": [
                "KERAS_BACKEND=torch",
                "DS_ACCELERATOR=cpu",
                *["DET_MANUAL_INIT_DISTRIBUTED=1"] * (form == "manual"),
            ],
        },
        "min_checkpoint_period": period,
        "min_validation_period": period,
        "scheduling_unit": PERIOD,
        "optimizations": {"asynchronous_checkpoints": True},
        # Lightning stores checkpoints by the policy alone, not by a period.
        "checkpoint_policy": "all" if script == "lightning" else "none",
        "reproducibility": {"experiment_seed": 11},
        "max_restarts": 1,
    }
    path = folder / "config.yaml"
    path.write_text(json.dumps(config, indent=1))
    return path, model
