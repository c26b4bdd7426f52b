"""The forms of a trial's entrypoint, each as model code that counts trained batches.

Every run of a trial creates the file `FORM.EPOCH` in a folder of the test. Its first line is the
batch at which the run began; a dot follows for each trained batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Longer than any test.
BATCHES = 100_000

COUNT = """
import os
def count_from(info, start):
    place = info.config["data"]["folder"] + "/" + info.config["data"]["form"]
    counts = open(f"{place}.{info.epoch}", "w", buffering=1)
    counts.write(f"{start}\\n")
    return counts
"""
LOOP = """
import json, sys, threading, time
from count import count_from
from detcloud import core

def train(distributed=None):
    with core.init(distributed=distributed) as context:
        steps = context.info.steps_completed
        if context.info.latest_checkpoint:
            with context.checkpoint.restore_path(context.info.latest_checkpoint) as folder:
                steps = json.loads((folder / "state.json").read_text())
        is_chief = context.distributed.rank == 0
        counts = count_from(context.info, steps) if is_chief else None
        for operation in context.searcher.operations():
            while steps < operation.length and not context.preempt.should_preempt():
                time.sleep(0.02)
                steps += 1
                if is_chief:
                    print(".", end="", file=counts, flush=True)
            if is_chief:
                with context.checkpoint.store_path({"steps_completed": steps}) as (folder, _):
                    (folder / "state.json").write_text(json.dumps(steps))
            if steps < operation.length:
                break
"""
MAIN = "from loop import train\ntrain()\n"
THREAD = """
import threading
from loop import train
thread = threading.Thread(target=train)
thread.start()
thread.join()
"""
HANDLER = """
import signal, sys
from loop import train
signal.signal(signal.SIGTERM, lambda *_: sys.exit("the script's own handler"))
train()
"""
GANG = """
from detcloud import core
from loop import train
train(core.DistributedContext.from_torch_distributed())
"""
# Without our package: based on docs/trial-directory.md alone.
READER = """
import hashlib, json, os, pathlib, time, types, uuid
from count import count_from
place = os.environ["DETCLOUD_TRIAL_DIR"]
def read(name):
    with open(f"{place}/in/{name}.json") as file:
        return json.load(file)
def report(kind, **fields):
    with open(f"{place}/out/report-0.jsonl", "a") as out:
        out.write(json.dumps({"kind": kind, "time_ms": time.time_ns() // 10**6, **fields}) + "\\n")
spec = read("spec")
steps = spec["steps_completed"]
counts = count_from(types.SimpleNamespace(**spec), steps)
while not read("directives")["preempt"]:
    time.sleep(0.02)
    steps += 1
    print(".", end="", file=counts, flush=True)
name, trial = str(uuid.uuid4()), spec["trial_id"]
path = f"{spec['experiment_id']}/{trial}/{spec['epoch']}/{name}"
about = {"uuid": name, "steps_completed": steps, "path": path}
report("checkpoint_intent", **about)
folder = pathlib.Path(spec["storage"]["path"], path)
folder.mkdir(parents=True)
state = json.dumps(steps).encode()
(folder / "state.json").write_bytes(state)
files = {"state.json": {"size": len(state), "sha256": hashlib.sha256(state).hexdigest()}}
manifest = {"version": 1, "uuid": name, "cluster_id": spec["cluster_id"], "trial_id": trial}
manifest |= {"steps_completed": steps, "files": files, "metadata": {}}
content = json.dumps(manifest).encode()
(folder / "manifest.json").write_bytes(content)
digest = hashlib.sha256(content).hexdigest()
sizes = {"size_bytes": len(state), "files": 1, "metadata": {}}
report("checkpoint", **about, manifest_sha256=digest, **sizes)
report("exit", reason="preempted", directive_revision=read("directives")["revision"])
"""
TRIAL = """
import time, torch
from torch.utils.data import TensorDataset
from count import count_from
from detcloud import pytorch

class Trial(pytorch.PyTorchTrial):
    def __init__(self, context):
        self.context, self.counts = context, None
        self.model = context.wrap_model(torch.nn.Linear(1, 1))
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.01))

    def build_training_data_loader(self):
        options = dict(self.context.get_hparams()["loader"])
        if options.get("num_workers"):
            options["persistent_workers"] = True
        return pytorch.DataLoader(TensorDataset(torch.rand(4000, 1)), batch_size=4, **options)

    def build_validation_data_loader(self):
        return pytorch.DataLoader(TensorDataset(torch.rand(4, 1)), batch_size=4)

    def train_batch(self, batch, epoch_idx, batch_idx):
        if self.counts is None and self.context.distributed.rank == 0:
            self.counts = count_from(self.context.core.info, batch_idx)
        time.sleep(0.02)
        loss = self.model(batch[0]).mean() ** 2
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        if self.counts is not None:
            print(".", end="", file=self.counts, flush=True)
        return {"loss": loss}

    def evaluate_batch(self, batch):
        return {"loss": self.model(batch[0]).mean() ** 2}
"""
FILES = {
    "count.py": COUNT,
    "loop.py": LOOP,
    "train.py": MAIN,
    "thread.py": THREAD,
    "handler.py": HANDLER,
    "gang.py": GANG,
    "reader.py": READER,
    "model_def.py": TRIAL,
}


@dataclass(frozen=True)
class Form:
    """A form of a trial.

    `reads_alone`: the program neither uses our package nor catches SIGTERM.
    """

    entrypoint: str | list[str]
    slots: int = 1
    hparams: dict[str, Any] = field(default_factory=dict)
    reads_alone: bool = False


def _loader(**options: Any) -> dict[str, Any]:
    return {"global_batch_size": 4, "loader": options}


LIGHT = {
    "list": Form(["python3", "train.py"]),
    "text": Form("python3 train.py"),
    "two commands": Form("python3 train.py && echo done"),
    "subshell": Form("bash -c '(python3 train.py); echo done'"),
    "thread": Form("python3 thread.py"),
    "own handler": Form("python3 handler.py; true"),
    "no package": Form("python3 reader.py; true", reads_alone=True),
}
_LAUNCHER = "python3 -m detcloud.launch.torch_distributed"
_TRIAL = "model_def:Trial"
HEAVY = {
    "class": Form(_TRIAL, hparams=_loader()),
    "class, fork": Form(_TRIAL, hparams=_loader(num_workers=2)),
    "class, spawn": Form(_TRIAL, hparams=_loader(num_workers=1, multiprocessing_context="spawn")),
    "class, forkserver": Form(
        _TRIAL, hparams=_loader(num_workers=1, multiprocessing_context="forkserver")
    ),
    "class, 2 slots": Form(_TRIAL, slots=2, hparams=_loader(num_workers=1)),
    "launcher, 2 slots": Form(f"{_LAUNCHER} -- python3 gang.py", slots=2),
    "torchrun, 2 slots": Form("torchrun --standalone --nproc_per_node 2 gang.py; true", slots=2),
}


def write_model(folder: Path) -> Path:
    """Write the model code of all forms; return the folder."""
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    return folder


def config(name: str, form: Form, folder: Path) -> dict[str, Any]:
    """Return the configuration of a trial of this form, which counts batches in `folder`."""
    return {
        "name": name,
        "entrypoint": form.entrypoint,
        "data": {"folder": str(folder), "form": name},
        "hyperparameters": form.hparams,
        "resources": {"slots_per_trial": form.slots},
        "scheduling_unit": BATCHES,
        "preemption_timeout": 2 if form in HEAVY.values() else 3600,
        "max_restarts": 0,
        "searcher": {"name": "single", "metric": "loss", "max_length": {"batches": BATCHES}},
    }


def trained_batches(folder: Path, name: str, epoch: int) -> int | None:
    """Return the batch up to which a run trained, or None before training began."""
    start, _, dots = _counts(folder, name, epoch).partition("\n")
    return int(start) + len(dots) if start else None


def began_at(folder: Path, name: str, epoch: int) -> int | None:
    """Return the batch at which a run began, or None before training began."""
    start, newline, _ = _counts(folder, name, epoch).partition("\n")
    return int(start) if newline else None


def _counts(folder: Path, name: str, epoch: int) -> str:
    path = folder / f"{name}.{epoch}"
    return path.read_text() if path.exists() else ""
