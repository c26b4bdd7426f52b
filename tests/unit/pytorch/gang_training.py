"""Trainings of a small model for tests, and a script that runs them in two processes.

`gang_training.py ROOT` trains in the trial directories that `prepare` created below ROOT. The
script forks before torch computes, so that torch is loaded once. Launchers are not tested here.
"""

import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import TensorDataset

from detcloud import core, pytorch
from detcloud.pytorch.batch_process import TorchBatchProcessor, torch_batch_process
from detcloud.shared.trial_directory import Preemption
from tests.patience import wait_until
from tests.unit.core.trial_files import direct, make_trial

LENGTH = 10
# 5 batches of 4, so that rank 0 has a batch more than rank 1.
VALIDATION_RECORDS = 20
SPEC: dict[str, Any] = {
    "scheduling_unit": 5,
    "checkpoint_policy": "none",
    "min_validation_batches": 5,
    "metric": "loss",
    "threads": 2,
    "slots": [0, 1],
}


class CurveTrial(pytorch.PyTorchTrial):
    """Trial that fits a parabola in shuffled batches; `noisy` adds dropout and batch norm."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        noise = (
            [torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.3)] if context.get_hparam("noisy") else []
        )
        layers = [torch.nn.Linear(1, 8), *noise, torch.nn.Tanh(), torch.nn.Linear(8, 1)]
        self.model = context.wrap_model(torch.nn.Sequential(*layers))
        self.optimizer = context.wrap_optimizer(
            torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        )
        self.records: Any = context.wrap_reducer(sum, name="records")

    def build_training_data_loader(self) -> pytorch.DataLoader:
        size = self.context.get_per_slot_batch_size()
        return pytorch.DataLoader(_points(48), batch_size=size, shuffle=True)

    def build_validation_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(_points(VALIDATION_RECORDS), batch_size=4)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        if batch_idx == self.context.get_hparams().get("notice_at", -1) and (
            self.context.distributed.rank == 1
        ):
            # A termination notice on the machine of rank 1 only.
            preempt = self.context.core.preempt
            preempt.request(Preemption(1, "a notice"))
            agreement = preempt._agreement
            assert agreement is not None
            # The remaining batches would end before the ranks agree on the batch to stop at.
            wait_until(lambda: agreement.request is not None)
        self.records.update(len(batch[0]))
        loss = torch.nn.functional.mse_loss(self.model(batch[0]), batch[1])
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch: Any) -> dict[str, Any]:
        self.records.update(len(batch[0]))
        return {"loss": torch.nn.functional.mse_loss(self.model(batch[0]), batch[1])}


class PartsProcessor(TorchBatchProcessor):
    """Batch processor that stores the records of each batch as an output."""

    def __init__(self, context: Any) -> None:
        self.context = context
        self.order: Any = context.wrap_reducer(list, name="order")

    def process_batch(self, batch: Any, batch_idx: int) -> None:
        self.order.update(batch.tolist())
        with self.context.upload_path() as folder:
            (folder / str(batch_idx)).write_text(str(batch.tolist()))


def process(root: Path) -> None:
    """Process 10 records in batches of 2 in the trial below `root`."""
    os.environ["DETCLOUD_TRIAL_DIR"] = str(root / "trial")
    records: Any = range(10)
    torch_batch_process(PartsProcessor, records, batch_size=2, checkpoint_interval=2)


def _points(count: int) -> TensorDataset:
    x = torch.linspace(-1, 1, count).reshape(-1, 1)
    return TensorDataset(x, x * x)


def train(root: Path) -> dict[str, torch.Tensor]:
    """Train the trial below `root` to its end or a stop; return the final weights."""
    os.environ["DETCLOUD_TRIAL_DIR"] = str(root / "trial")
    with pytorch.init() as context:
        trial = CurveTrial(context)
        pytorch.Trainer(trial, context).fit()
        return {name: value.clone() for name, value in trial.model.state_dict().items()}


def prepare(root: Path, **spec: Any) -> None:
    """Create the trial directory below `root` for LENGTH batches; `spec` overrides fields."""
    hparams = {"global_batch_size": 8, "noisy": False, **spec.pop("hparams", {})}
    # Large states are stored in the background.
    given = spec.pop("config", {})
    optimizations = {"asynchronous_checkpoints": True, **given.get("optimizations", {})}
    config = {**given, "optimizations": optimizations}
    made = make_trial(root, **{**SPEC, "hparams": hparams, "config": config, **spec})
    direct(made, **DIRECTIVES)


DIRECTIVES = {"revision": 1, "length": LENGTH, "closed": True}


def train_alone(root: Path) -> dict[str, torch.Tensor]:
    """Train 4 batches without a cluster; return the final weights."""
    os.environ.pop("DETCLOUD_TRIAL_DIR")
    hparams = {"global_batch_size": 8, "noisy": False}
    with pytorch.init(hparams=hparams, checkpoint_dir=root / "off") as context:
        trial = CurveTrial(context)
        pytorch.Trainer(trial, context).fit(max_length=pytorch.Batch(4))
        return trial.model.state_dict()


def save_sharded(root: Path) -> dict[str, torch.Tensor]:
    """Save a sharded tensor in the background, load the shards and return the whole tensor."""
    from torch.distributed.checkpoint.state_dict_loader import load
    from torch.distributed.checkpoint.state_dict_saver import save
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2,))
    with core.init(checkpoint_dir=root / "sharded") as context:
        state: dict[str, Any] = {"w": distribute_tensor(torch.arange(8.0), mesh, [Shard(0)])}
        store = context.checkpoint.store_path({}, shard=True, asynchronous=True)
        with store as (folder, uuid):
            save(state, checkpoint_id=folder)
        loaded: dict[str, Any] = {"w": distribute_tensor(torch.zeros(8), mesh, [Shard(0)])}
        with context.checkpoint.restore_path(uuid) as folder:
            load(loaded, checkpoint_id=folder)
    return {"w": loaded["w"].full_tensor()}


def main(root: Path, rank: int) -> None:
    """Train all prepared trials as rank `rank` of two, and write the weights to states-RANK.pth.

    The stopped trial is resumed, and `went_on` continues from the first checkpoint of `saving`.
    """
    names = ("plain", "unbroken", "saving", "stopped", "chief", "compressed")
    states = {name: train(root / name) for name in names}
    if rank == 0:
        report = root / "stopped" / "trial" / "out" / "report-0.jsonl"
        lines = map(json.loads, report.read_text().splitlines())
        kept = next(line for line in lines if line["kind"] == "checkpoint")
        reference = {name: kept[name] for name in ("uuid", "path", "steps_completed")}
        resumed = root / "stopped" / "trial" / "in" / "spec.json"
        spec = json.loads(resumed.read_text())
        spec["hparams"].pop("notice_at")
        resumed.write_text(
            json.dumps({**spec, "latest_checkpoint": {**reference, "trial_id": spec["trial_id"]}})
        )
        resume_from_first_checkpoint(root / "saving", root / "went_on")
    torch.distributed.barrier()
    states["went_on"] = train(root / "went_on")
    states["resumed"] = train(root / "stopped")
    process(root / "processed")
    states["off"] = train_alone(root)
    states["sharded"] = save_sharded(root)
    torch.save(states, root / f"states-{rank}.pth")


def resume_from_first_checkpoint(root: Path, resumed: Path) -> None:
    """Make the trial below `resumed` start from the first checkpoint of the trial below `root`.

    Link the store into `resumed`, and rewrite spec.json.
    """
    report = root / "trial" / "out" / "report-0.jsonl"
    lines = map(json.loads, report.read_text().splitlines())
    kept = next(line for line in lines if line["kind"] == "checkpoint")
    (resumed / "store").symlink_to(root / "store")
    place = resumed / "trial" / "in" / "spec.json"
    spec = json.loads(place.read_text())
    reference = {name: kept[name] for name in ("uuid", "path", "steps_completed")}
    spec["latest_checkpoint"] = {**reference, "trial_id": spec["trial_id"]}
    place.write_text(json.dumps(spec))


def fork_gang(root: Path) -> int:
    """Run `main` in this process (rank 0) and in a forked process; return the exit code.

    If a process fails, it kills the other process.
    """
    os.chdir(root)
    os.environ.update(
        TORCHELASTIC_RUN_ID="none",
        WORLD_SIZE="2",
        LOCAL_WORLD_SIZE="2",
        MASTER_ADDR="127.0.0.1",
        # Here the port is only part of the name of the shared socket file.
        MASTER_PORT=str(os.getpid()),
    )
    parent = os.getpid()
    child = os.fork()
    rank = 0 if child else 1
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
    try:
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{root}/store", rank=rank, world_size=2
        )
        main(root, rank)
    except BaseException:
        traceback.print_exc()
        # The surviving process would wait forever.
        os.kill(child or parent, signal.SIGKILL)
        os._exit(1)
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os._exit(0)


if __name__ == "__main__":
    sys.exit(fork_gang(Path(sys.argv[1])))
