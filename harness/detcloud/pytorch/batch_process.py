"""Batch processing: one pass over a data set in all processes of a trial, as for inference.

A user's processor gets the batches of its process. Checkpoints store the progress, from which a
stopped trial resumes. The processor's results are stored as outputs.
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
from detcloud.pytorch.devices import process_device
from detcloud.pytorch.gang import join_process_group
from detcloud.pytorch.reducers import MetricReducer, Reducers
from detcloud.shared.errors import DetcloudError
from detcloud.shared.plurals import count_text

Model = TypeVar("Model", bound=torch.nn.Module)

PROGRESS_FILE = "batch_completed.json"
WORKERS = "workers"
_RESERVED_OPTIONS = ("sampler", "batch_sampler")


class TorchBatchProcessor(ABC):
    """The base of user classes that process the batches of a process."""

    @abstractmethod
    def __init__(self, context: TorchBatchProcessorContext) -> None:
        """Create objects that the batches need, for example a model."""

    @abstractmethod
    def process_batch(self, batch: Any, batch_idx: int) -> None:
        """Process a batch. An exception ends the processing.

        Args:
            batch: a batch of the data set, not moved to the device.
            batch_idx: the batch's number in this process since the trial's start, from 0.
        """

    def on_checkpoint_start(self) -> None:  # noqa: B027 - need not be defined.
        """Called in every process before a checkpoint.

        Store all results: earlier batches are not processed again.
        """

    def on_finish(self) -> None:  # noqa: B027 - need not be defined.
        """Called in every process after the last batch of all processes."""


class TorchBatchProcessorContext:
    """The rank of a processor's process, the device, and the outputs."""

    def __init__(self, core_context: core.Context) -> None:
        """Create the context. All processes agree on a new folder of outputs, so all must call
        this.

        Raises DetcloudError if another process has exited.
        """
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
        """Return the hyperparameters. The dict is not a copy."""
        return self.core.info.hparams

    def get_distributed_rank(self) -> int:
        """Return the rank of this process."""
        return self.distributed.rank

    def get_distributed_size(self) -> int:
        """Return the number of processes."""
        return self.distributed.size

    def to_device(self, data: Any) -> Any:
        """Return nested data with all tensors and arrays on this process's device."""
        return move_to_device(data, self.device)

    def prepare_model_for_inference(self, model: Model) -> Model:
        """Move the model to the device, set the evaluation mode, and return the model."""
        model.eval()
        return model.to(self.device)

    def get_tensorboard_path(self) -> Path:
        """Return the folder of event files. Only the chief's folder is stored with the trial."""
        return self.core.train.get_tensorboard_path()

    def report_metrics(self, group: str, steps_completed: int, metrics: dict[str, Any]) -> None:
        """Report metrics on the chief. Metrics of other processes are stored by rank.

        Args:
            group: the name of the group, without a dot.
            steps_completed: the number of batches since the trial's start.
            metrics: the metrics by name.

        Raises:
            InvalidValue: the group or `steps_completed` is invalid, or a name was just reported.
            InvalidType: `steps_completed` is no int, or `metrics` no dict.
            DetcloudError: JSON cannot contain a value, or the report exceeds 256 KiB or cannot be
                written.
        """
        self.core.train.report_metrics(group, steps_completed, metrics)

    def wrap_reducer(
        self,
        reducer: MetricReducer | type[MetricReducer] | Callable[[list[Any]], Any],
        name: str | None = None,
        for_training: bool = True,
        for_validation: bool = True,
    ) -> MetricReducer:
        """Report a metric that the processor collects, at the end and when the trial stops.

        Args:
            reducer: a MetricReducer, a subclass of MetricReducer, or a function of the list of all
                values. Add values with `update(value)` of the returned reducer.
            name: the metric's name. With None, the reducer returns a dict of metrics.
            for_training: without effect.
            for_validation: without effect.

        Raises:
            InvalidType: `reducer` is of another kind.
            InvalidValue: the reducer is wrapped already.
        """
        return self.reducers.wrap(reducer, name, for_training=False, for_validation=True)

    @contextmanager
    def upload_path(self) -> Iterator[Path]:
        """Yield an empty folder, and store the folder's files as outputs at the end of the block.

        Outputs are stored next to the trial's checkpoints; the log names the folder once. If a name
        was stored before, a number is added. Links are skipped. If the block raises, nothing is
        stored. Files that were stored before an error stay stored.

        Raises:
            StorageError: storing fails.
        """
        with TemporaryDirectory(prefix="detcloud-outputs-") as folder:
            yield Path(folder)
            for path in sorted(Path(folder).rglob("*")):
                if path.is_file() and not path.is_symlink():
                    self._store_output(path, path.relative_to(folder))

    def report_task_using_checkpoint(self, checkpoint: object) -> None:
        """Raise DetcloudError: detcloud does not support this function of Determined."""
        raise DetcloudError(
            "report_task_using_checkpoint is not supported: keep the checkpoint's UUID with"
            " core_context.train.set_metadata({...}), which `detcloud trial describe` shows"
        )

    report_task_using_model_version = report_task_using_checkpoint

    def _store_output(self, path: Path, name: Path) -> None:
        """Store a file as output, with a number if the name exists. Raises StorageError."""
        number, stored = 1, name
        while not self.core.checkpoint.store_output(f"{self._outputs}/{stored.as_posix()}", path):
            number += 1
            stored = name.with_name(f"{name.stem}-{number}{name.suffix}")
        if not self._has_outputs:
            self._has_outputs = True
            place = self.core.checkpoint.output_place(self._outputs)
            print(f"[detcloud] outputs are stored in {place}", flush=True)


def default_device(core_context: core.Context) -> torch.device:
    """Return the process's GPU, by local rank, or the CPU without GPUs."""
    return process_device(core_context.distributed.local_rank)


def torch_batch_process(
    batch_processor_cls: type[TorchBatchProcessor],
    dataset: torch.utils.data.Dataset[Any],
    batch_size: int | None = None,
    max_batches: int | None = None,
    checkpoint_interval: int = 5,
    dataloader_kwargs: dict[str, Any] | None = None,
    distributed_context: core.DistributedContext | None = None,
) -> None:
    """Process a map-style data set once, with batches distributed over the trial's processes.

    The progress is stored in checkpoints, from which a restarted trial resumes. The progress and
    the reducers' metrics are reported to the cluster. Return after the last batch, or after a
    request to stop the trial, with a checkpoint of the progress. Errors of the processor are raised
    unchanged.

    Args:
        batch_processor_cls: the processor, created in each process.
        dataset: the data set: an object with `__len__` and `__getitem__`.
        batch_size: the records of a batch, 1 by default; may be among `dataloader_kwargs`.
        max_batches: the most batches of each process. Values below 1 or above the data set's
            batches are ignored with a printed notice.
        checkpoint_interval: batches of each process between two checkpoints. A pause takes effect
            at a checkpoint; a stop with a deadline, such as a kill, after the current batch.
        dataloader_kwargs: arguments of torch's DataLoader, without samplers and shuffle.
        distributed_context: the group of processes, unless a launcher of detcloud started them.

    Raises:
        DetcloudError: the data set has no length, an argument is invalid, a single process runs in
            a trial with several slots, the checkpoint is of another number of processes, or a
            report or checkpoint cannot be stored.
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
    """The processing of a data set in this process."""

    def __init__(
        self,
        context: TorchBatchProcessorContext,
        loader: DataLoader,
        max_batches: int | None,
        checkpoint_interval: int,
    ) -> None:
        """Read the progress of an earlier run from the latest checkpoint.

        Raises DetcloudError if the earlier run had another number of processes or the checkpoint
        cannot be read.
        """
        self._context, self._core = context, context.core
        self._ranks = context.distributed
        self._loader, self._interval = loader, checkpoint_interval
        # Every process has this number of batches, so that all save at the same batches.
        self._length = _limit(max_batches, -(-len(loader) // self._ranks.size))
        self._steps = self._saved = self._restored_steps()
        self._is_done = False
        self.metric = 1.0

    def run(self, kind: type[TorchBatchProcessor]) -> bool:
        """Process the remaining batches with a new processor of class `kind`.

        Store checkpoints, and report the progress and the reducers' metrics. After the last batch,
        call `on_finish` and return True. After an earlier request to stop the trial, store a
        checkpoint and return False. A call after the end returns True without a processor. All
        processes call this and return the same.

        Raises errors of the processor, the reducers and the data set. Raises DetcloudError if a
        report or checkpoint cannot be stored or another process has exited.
        """
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
        """Return whether to stop after this batch, upon a request to stop. False after the last
        batch.

        A request with a deadline, at which the machine ends or the process is killed, counts at
        once. A request without a deadline counts at every `checkpoint_interval`th batch; there,
        also store a checkpoint and report the progress. Raises DetcloudError if either cannot be
        stored, and errors of the processor.
        """
        if self._core.preempt.must_stop_at_next_batch():
            return self._steps < self._length
        if self._steps % self._interval or self._steps == self._length:
            return False
        self._save(processor)
        self._report_progress(self._steps / self._length)
        return self._core.preempt.should_preempt()

    def _report_progress(self, share: float) -> None:
        """Report the share of processed batches, 0 to 1, on the chief; do nothing elsewhere.

        Raises DetcloudError if the report cannot be written.
        """
        if self._core.is_chief:
            self._core.train.report_progress(share)

    def _save(self, processor: TorchBatchProcessor) -> None:
        """Call `on_checkpoint_start`, wait for all processes, and store the progress on the chief.

        Do nothing if a checkpoint has this progress already. Raises DetcloudError if storing fails
        or another process has exited, and errors of `on_checkpoint_start`.
        """
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
        """Reduce the metrics of the reducers, and report the metrics as a validation on the chief.

        Do nothing if this run, which began at batch `first`, has no new batch, or without reducers.
        Every process must call this, and sets `metric` to the searcher's metric if it is a number.

        Raises errors of the reducers, and InvalidType for a reducer that returns a dict in spite of
        a name, or no dict without a name. Raises DetcloudError if the report fails or another
        process has exited.
        """
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
        """Return the number of batches that each process completed in earlier runs, or 0.

        Raises DetcloudError if the earlier run had another number of processes.
        """
        spec = self._core.info
        latest = spec.latest_checkpoint
        if not isinstance(latest, CheckpointReference) or latest.trial_id != spec.trial_id:
            return 0
        metadata: Mapping[str, Any] = self._core.checkpoint.get_metadata(latest)
        workers = metadata.get(WORKERS, self._ranks.size)
        if workers != self._ranks.size:
            writers = count_text(workers, "process", "processes")
            raise DetcloudError(
                f"checkpoint {latest.uuid} was saved by {writers}, "
                f"and this run has {self._ranks.size}: start {workers}, or create a new experiment"
            )
        return int(metadata.get("steps_completed", 0))


def _checked_options(
    options: dict[str, Any] | None, batch_size: int | None, checkpoint_interval: int
) -> dict[str, Any]:
    """Return the arguments of the data loader.

    Raises DetcloudError for arguments that change the order, a second batch size, or a checkpoint
    interval below 1.
    """
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
    """Raise DetcloudError if this is the only process of a trial with several slots."""
    spec, size = core_context.info, core_context.distributed.size
    slots = len(spec.slots) * max(1, spec.nodes)
    if slots > 1 and size == 1:
        raise DetcloudError(
            f"the trial has {slots} slots and this is its only process: start one for each with"
            " `python3 -m detcloud.launch.torch_distributed SCRIPT`"
        )


def _limit(max_batches: int | None, length: int) -> int:
    """Return the number of batches of each process: `max_batches`, or by default `length`.

    Print a notice and return `length` for a number below 1 or above `length`.
    """
    if max_batches is None:
        return length
    if not 0 < max_batches <= length:
        batches = count_text(length, "batch", "batches")
        print(
            f"[detcloud] max_batches {max_batches} is not used: each process has {batches}",
            flush=True,
        )
        return length
    return max_batches
