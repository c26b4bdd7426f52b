"""Batch processing: a data set gone through once, on all processes of a trial, as for inference.

A processor of the user's gets this process's batches. How far all are is kept in checkpoints, which
a trial that was stopped goes on from; what the processor makes of them is stored as outputs.
"""

from __future__ import annotations

import json
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sized
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import torch

from detcloud import core
from detcloud.core import CheckpointReference
from detcloud.pytorch.batch_data import move_to_device
from detcloud.pytorch.data import DataLoader
from detcloud.pytorch.gang import join_process_group
from detcloud.pytorch.reducers import MetricReducer, Reducers
from detcloud.shared.errors import DetcloudError

Model = TypeVar("Model", bound=torch.nn.Module)

PROGRESS_FILE = "batch_completed.json"
WORKERS = "workers"
_RESERVED_OPTIONS = ("sampler", "batch_sampler")


class TorchBatchProcessor(ABC):
    """A class of the user's that processes the batches of one process."""

    @abstractmethod
    def __init__(self, context: TorchBatchProcessorContext) -> None:
        """Make what batches need, such as a model."""

    @abstractmethod
    def process_batch(self, batch: Any, batch_idx: int) -> None:
        """Process one batch; `batch_idx` counts the batches of this process."""

    def on_checkpoint_start(self) -> None:  # noqa: B027 - need not be defined.
        """Store what has been made until now: batches before a checkpoint do not come again."""

    def on_finish(self) -> None:  # noqa: B027 - need not be defined.
        """Called once all processes have been through the whole data set."""


class TorchBatchProcessorContext:
    """A processor's place among the processes, its device and its outputs."""

    def __init__(self, core_context: core.Context) -> None:
        self.core = core_context
        self.distributed = core_context.distributed
        self.device = default_device(core_context)
        self.reducers = Reducers()
        spec = core_context.info
        name = self.distributed.broadcast(str(uuid.uuid4()))
        self._outputs = (
            f"{spec.experiment_id}/{spec.trial_id}/{spec.epoch}/outputs/{name}"
            f"/rank_{self.distributed.rank}"
        )
        self._has_outputs = False

    def get_hparams(self) -> dict[str, Any]:
        return self.core.info.hparams

    def get_distributed_rank(self) -> int:
        return self.distributed.rank

    def get_distributed_size(self) -> int:
        return self.distributed.size

    def to_device(self, data: Any) -> Any:
        """The data with all that has a method `to` in its structures on this process's device."""
        return move_to_device(data, self.device)

    def prepare_model_for_inference(self, model: Model) -> Model:
        """The model on the device, in evaluation mode."""
        model.eval()
        return model.to(self.device)

    def get_tensorboard_path(self) -> Path:
        """The folder of the trial's event files; of a process that is not the chief, one of its
        own, of which nothing is kept.
        """
        return self.core.train.get_tensorboard_path()

    def report_metrics(self, group: str, steps_completed: int, metrics: dict[str, Any]) -> None:
        """Report metrics, of the chief alone; see `core_context.train.report_metrics`."""
        self.core.train.report_metrics(group, steps_completed, metrics)

    def wrap_reducer(
        self,
        reducer: MetricReducer | type[MetricReducer] | Callable[[list[Any]], Any],
        name: str | None = None,
        for_training: bool = True,
        for_validation: bool = True,
    ) -> MetricReducer:
        """Make a metric that the processor collects part of the report at the end.

        See `PyTorchTrialContext.wrap_reducer`; the last two arguments change nothing.
        """
        return self.reducers.wrap(reducer, name, for_training=False, for_validation=True)

    @contextmanager
    def upload_path(self) -> Iterator[Path]:
        """Yield an empty folder, whose files are stored as outputs of this process afterwards.

        They lie where the trial's checkpoints do, in a folder that the log names. A name that was
        stored before gets a number.
        """
        with TemporaryDirectory(prefix="detcloud-outputs-") as folder:
            yield Path(folder)
            for path in sorted(Path(folder).rglob("*")):
                if path.is_file() and not path.is_symlink():
                    self._store_output(path, path.relative_to(folder))

    def report_task_using_checkpoint(self, checkpoint: object) -> None:
        """DetcloudError: nothing is linked to a checkpoint here."""
        raise DetcloudError(
            "report_task_using_checkpoint is not supported: keep the checkpoint's UUID with"
            " core_context.train.set_metadata({...}), which `detcloud trial describe` shows"
        )

    report_task_using_model_version = report_task_using_checkpoint

    def _store_output(self, path: Path, name: Path) -> None:
        number, stored = 1, name
        while not self.core.checkpoint.store_output(f"{self._outputs}/{stored.as_posix()}", path):
            number += 1
            stored = name.with_name(f"{name.stem}-{number}{name.suffix}")
        if not self._has_outputs:
            self._has_outputs = True
            place = self.core.checkpoint.output_place(self._outputs)
            print(f"[detcloud] outputs are stored in {place}", flush=True)


def default_device(core_context: core.Context) -> torch.device:
    """The GPU of this process, of those of its node, or the CPU where there is none."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", core_context.distributed.local_rank)


def torch_batch_process(
    batch_processor_cls: type[TorchBatchProcessor],
    dataset: torch.utils.data.Dataset[Any],
    batch_size: int | None = None,
    max_batches: int | None = None,
    checkpoint_interval: int = 5,
    dataloader_kwargs: dict[str, Any] | None = None,
    distributed_context: core.DistributedContext | None = None,
) -> None:
    """Go through a map-style data set once, its batches shared out over the trial's processes.

    Args:
        batch_size: the records of a batch, 1 by default; may be among `dataloader_kwargs`, which
            are torch's.
        max_batches: the most batches of each process.
        checkpoint_interval: batches of each process between two checkpoints; a pause waits for one.

    Raises DetcloudError for what cannot be shared out or repeated.
    """
    options = _checked_options(dataloader_kwargs, batch_size, checkpoint_interval)
    if not isinstance(dataset, Sized):
        raise DetcloudError(f"{type(dataset).__name__} has no length: give it __len__")
    with core.init(distributed=distributed_context) as core_context:
        _check_workers(core_context)
        join_process_group(core_context.distributed)
        if core_context.info.threads is not None:
            torch.set_num_threads(core_context.info.threads)
        context = TorchBatchProcessorContext(core_context)
        loader = DataLoader(dataset, **options)
        processing = _Processing(context, loader, max_batches, checkpoint_interval)
        for operation in core_context.searcher.operations(1):
            if not processing.run(batch_processor_cls):
                break
            operation.complete(processing.metric)


class _Processing:
    """One data set on its way through a processor."""

    def __init__(
        self,
        context: TorchBatchProcessorContext,
        loader: DataLoader,
        max_batches: int | None,
        checkpoint_interval: int,
    ) -> None:
        self._context, self._core = context, context.core
        self._ranks = context.distributed
        self._loader, self._interval = loader, checkpoint_interval
        # As many for each process, so that all meet at the same checkpoints.
        self._length = _limit(max_batches, -(-len(loader) // self._ranks.size))
        self._steps = self._saved = self._restored_steps()
        self._is_done = False
        self.metric = 1.0

    def run(self, kind: type[TorchBatchProcessor]) -> bool:
        """Process the remaining batches; returns False if the trial had to stop before the end."""
        if self._is_done:
            return True
        processor, first = kind(self._context), self._steps
        batches = iter(
            self._loader.get_data_loader(
                skip=first, num_replicas=self._ranks.size, rank=self._ranks.rank
            )
        )
        missing = object()
        while self._steps < self._length:
            batch = next(batches, missing)
            if batch is not missing:
                processor.process_batch(batch, self._steps)
            self._steps += 1
            if self._must_stop(processor):
                self._save(processor)
                self._report(first)
                return False
        self._save(processor)
        self._report(first)
        processor.on_finish()
        self._ranks.allgather(None)
        self._report_progress(1.0)
        self._is_done = True
        return True

    def _must_stop(self, processor: TorchBatchProcessor) -> bool:
        """Whether to stop here; a checkpoint is stored where one is due."""
        if self._core.preempt.must_stop_at_next_batch():
            return self._steps < self._length
        if self._steps % self._interval or self._steps == self._length:
            return False
        self._save(processor)
        self._report_progress(self._steps / self._length)
        return self._core.preempt.should_preempt()

    def _report_progress(self, share: float) -> None:
        """Report how much is done, on the chief for all."""
        if self._core.is_chief:
            self._core.train.report_progress(share)

    def _save(self, processor: TorchBatchProcessor) -> None:
        """Store how far all processes are, once each has stored what it made."""
        if self._saved == self._steps and self._steps:
            return
        processor.on_checkpoint_start()
        self._ranks.allgather(None)
        self._saved = self._steps
        if not self._core.is_chief:
            return
        metadata = {"steps_completed": self._steps, WORKERS: self._ranks.size}
        with self._core.checkpoint.store_path(metadata) as (folder, _):
            (folder / PROGRESS_FILE).write_text(json.dumps({"batch_completed": self._steps}))

    def _report(self, first: int) -> None:
        """Report the reducers' metrics of the batches since this process began."""
        if self._steps == first:
            return
        metrics = self._context.reducers.reduce(self._ranks, training=False)
        if not metrics:
            return
        if self._core.is_chief:
            self._core.train.report_validation_metrics(self._steps, metrics)
        value = metrics.get(self._core.info.metric)
        if isinstance(value, int | float):
            self.metric = float(value)

    def _restored_steps(self) -> int:
        """The batches of each process that an earlier run of this trial has completed."""
        spec = self._core.info
        latest = spec.latest_checkpoint
        if not isinstance(latest, CheckpointReference) or latest.trial_id != spec.trial_id:
            return 0
        metadata: Mapping[str, Any] = self._core.checkpoint.get_metadata(latest)
        workers = metadata.get(WORKERS, self._ranks.size)
        if workers != self._ranks.size:
            raise DetcloudError(
                f"checkpoint {latest.uuid} is of {workers} processes and this run has "
                f"{self._ranks.size}: start as many, or begin with a new experiment"
            )
        return int(metadata.get("steps_completed", 0))


def _checked_options(
    options: dict[str, Any] | None, batch_size: int | None, checkpoint_interval: int
) -> dict[str, Any]:
    """The arguments of the data loader; DetcloudError for those that decide the order."""
    checked = dict(options or {})
    if isinstance(checkpoint_interval, bool) or checkpoint_interval < 1:
        raise DetcloudError(
            f"checkpoint_interval is {checkpoint_interval!r}: expected an integer of at least 1"
        )
    if checked.pop("shuffle", False):
        raise DetcloudError(
            "dataloader_kwargs has shuffle: the order must be the same after a restart, so leave "
            "it out"
        )
    for name in _RESERVED_OPTIONS:
        if name in checked:
            raise DetcloudError(
                f"dataloader_kwargs has {name}: batches are shared out by torch_batch_process"
            )
    if batch_size is not None and "batch_size" in checked:
        raise DetcloudError("batch_size is given twice: as an argument and in dataloader_kwargs")
    return {"batch_size": 1 if batch_size is None else batch_size, **checked}


def _check_workers(core_context: core.Context) -> None:
    spec, size = core_context.info, core_context.distributed.size
    slots = len(spec.slots) * max(1, spec.nodes)
    if slots > 1 and size == 1:
        raise DetcloudError(
            f"the trial has {slots} slots and this is its only process: start one for each with"
            " `python3 -m detcloud.launch.torch_distributed SCRIPT`"
        )


def _limit(max_batches: int | None, length: int) -> int:
    if max_batches is None:
        return length
    if not 0 < max_batches <= length:
        print(
            f"[detcloud] max_batches {max_batches} is not used: each process has {length} batches",
            flush=True,
        )
        return length
    return max_batches
