"""Determined's `core`: the Core API with lengths in the configuration's unit.

A script for Determined compares `op.length` with the epochs, records or batches trained, in the
unit of `searcher.max_length`. detcloud's own Core API counts batches.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import fields
from enum import Enum
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from detcloud import core
from detcloud.compatibility.cluster_info import ClusterInfo, get_cluster_info
from detcloud.core.distributed_context import detect_distributed
from detcloud.shared.errors import DetcloudError, InvalidCall, InvalidType, InvalidValue
from detcloud.shared.trial_directory import TrialSpec

_FORMER_PARTS = {"checkpointing": "checkpoint", "preemption": "preempt", "training": "train"}
_MISSING_PARTS = {
    "experimental": "keep the UUID of the checkpoint that is used with"
    " core_context.train.set_metadata({...}), which `detcloud trial describe` shows.",
    "_tensorboard_manager": "the files in core_context.train.get_tensorboard_path() are stored from"
    " time to time and at the end.",
}


class NoChief(DetcloudError, AssertionError):
    """The processes on several nodes were not given the address of the first node."""


class DistributedContext(core.DistributedContext):
    """A process among several that exchange values, with or without a launcher.

    Processes on a single node find each other. Processes on several nodes (`local_size` differs
    from `size`) without `chief_ip` get the error NoChief, an AssertionError. `pub_port`,
    `pull_port`, `port_offset` and `force_tcp` change nothing.
    """

    def __init__(  # noqa: PLR0913 - Determined's arguments.
        self,
        rank: int = 0,
        size: int = 1,
        local_rank: int = 0,
        local_size: int = 1,
        cross_rank: int | None = None,
        cross_size: int | None = None,
        chief_ip: str | None = None,
        pub_port: int | None = None,
        pull_port: int | None = None,
        port_offset: int = 0,
        force_tcp: bool = False,
    ) -> None:
        if chief_ip is None and local_size != size:
            raise NoChief(
                f"local_size is {local_size} and size {size}: processes on several nodes need"
                " chief_ip, the address of the first node"
            )
        meeting = "127.0.0.1" if chief_ip is None and size > 1 else chief_ip
        super().__init__(rank, size, local_rank, local_size, cross_rank, cross_size, meeting)


class Unit(Enum):
    """The unit of the searcher's lengths."""

    EPOCHS = "EPOCHS"
    RECORDS = "RECORDS"
    BATCHES = "BATCHES"


class SearcherOperation:
    """An operation of the searcher, with `length` in the configuration's unit."""

    def __init__(self, operation: core.SearcherOperation, *, is_chief: bool = True) -> None:
        self._operation, self._is_chief = operation, is_chief

    @property
    def length(self) -> int:
        """The length to train to, in the configuration's unit since the trial's start."""
        return self._operation.length_units

    def report_progress(self, length: float) -> None:
        """Report how much of `length` is done, in the same unit.

        Raises InvalidCall after `report_completed`, unless the whole length is reported.
        """
        operation = self._operation
        if operation.completed and length != self.length:
            raise InvalidCall("report_progress was called after report_completed")
        operation.report_progress(operation.length * (length / max(1, self.length)))

    def report_completed(self, searcher_metric: Any) -> None:
        """Send the searcher's metric, once, after the validation was reported.

        A custom search accepts any value that JSON can contain. Only the chief may call this
        method; other processes get InvalidCall.
        """
        if not self._is_chief:
            raise InvalidCall("report_completed was called by a process that is not the chief")
        self._operation.complete(searcher_metric)

    # The name in 0.17.
    complete = report_completed


class SearcherContext:
    """The searcher's operations, with lengths in the configuration's unit.

    `in_batches` is detcloud's own searcher context.
    """

    def __init__(
        self, searcher: core.SearcherContext, config: Mapping[str, Any], *, is_chief: bool = True
    ) -> None:
        self.in_batches = searcher
        self._config, self._is_chief = config, is_chief

    def operations(
        self,
        searcher_mode: core.SearcherMode = core.SearcherMode.WorkersAskChief,
        auto_ack: bool = True,
    ) -> Iterator[SearcherOperation]:
        """Yield operations until no work is left for this process.

        `searcher_mode` is that of detcloud's own `operations`. `auto_ack` changes nothing, because
        the end of the loop needs no acknowledgement.
        """
        for operation in self.in_batches.operations(searcher_mode=searcher_mode):
            yield SearcherOperation(operation, is_chief=self._is_chief)

    def ops(self, auto_ack: bool = True) -> Iterator[SearcherOperation]:
        """Call `operations`, as scripts for 0.17 do."""
        return self.operations(auto_ack=auto_ack)

    def acknowledge_out_of_ops(self) -> None:
        """Do nothing: the end of the process is the acknowledgement."""

    def get_configured_units(self) -> Unit | None:
        """Return the unit of the searcher's lengths, or None if lengths are plain numbers or
        missing.
        """
        options = self._config.get("searcher") or {}
        length = options.get("max_length") or options.get("length_per_round")
        unit = options.get("unit") or (
            next(iter(length), "") if isinstance(length, Mapping) else ""
        )
        return Unit.__members__.get(unit.upper())


class ContextInfo:
    """Facts about a trial: the fields of a TrialSpec, and all other fields of ClusterInfo."""

    def __init__(self, spec: TrialSpec, info: ClusterInfo) -> None:
        self._spec, self._info = spec, info

    def __getattr__(self, name: str) -> Any:
        return getattr(self._spec if hasattr(self._spec, name) else self._info, name)


class Context(core.Context):
    """The Core API for a script of Determined, open from `init` on.

    Scripts may leave the `with` block, call `close`, or do neither. Without both, the exit code of
    the process decides how the trial ended.
    """

    # The block that `close` ends. Without this reference, its generator would end with `init`.
    _block: ExitStack | None = None

    def __getattr__(self, name: str) -> Any:
        """Return a part by the name in 0.17.

        Raises AttributeError, with the replacement if known.
        """
        if name in _FORMER_PARTS:
            return getattr(self, _FORMER_PARTS[name])
        sentence = _MISSING_PARTS.get(name)
        if sentence is not None:
            raise AttributeError(f"core_context.{name} is not supported by detcloud: {sentence}")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def batch_searcher(self) -> core.SearcherContext:
        searcher: Any = self.searcher
        own: core.SearcherContext = searcher.in_batches
        return own

    def start(self) -> None:
        """Do nothing: a context is already open."""

    def __enter__(self) -> Context:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if kind is None and getattr(sys, "last_value", None) is not None:
            # Called by an exit handler of the script after an uncaught exception.
            self.abandon()
            return False
        block = self._block
        object.__setattr__(self, "_block", None)
        return block is not None and bool(block.__exit__(kind, error, traceback))

    def close(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> None:
        """End the context. The trial has succeeded unless an exception is given."""
        self.__exit__(exc_type, exc_val, exc_tb)

    def abandon(self) -> None:
        """Close the files in a process that ends without `close`. Do nothing after `close`."""
        if self._block is not None:
            core.Context.close(self)


def init(
    *,
    distributed: core.DistributedContext | None = None,
    checkpoint_storage: str | Mapping[str, Any] | None = None,
    preempt_mode: core.PreemptMode = core.PreemptMode.WorkersAskChief,
    tensorboard_mode: core.TensorboardMode = core.TensorboardMode.AUTO,
) -> Context:
    """Open the Core API for a script of Determined, with or without a `with` block.

    Args:
        distributed: the group of processes; None for a single process or a launcher's workers.
        checkpoint_storage: without a cluster, the folder for checkpoints: a path, a `file://`
            address or a section as in the configuration. None for the user's data folder. On a
            cluster, it is ignored with a printed notice, because the configuration decides.
        preempt_mode: see `detcloud.core`.
        tensorboard_mode: see `detcloud.core`.

    Raises:
        InvalidType: `checkpoint_storage` is of another type.
        InvalidValue: `checkpoint_storage` is no folder, or a trial with several slots has neither a
            launcher nor `distributed`.
    """
    info = get_cluster_info()
    distributed = distributed or detect_distributed()
    _check_processes(info, distributed)
    folder = _checkpoint_folder(checkpoint_storage)
    if info is not None and folder is not None:
        print(
            "[detcloud] core.init(checkpoint_storage=...) is not used: checkpoints go to the"
            " configuration's checkpoint_storage",
            flush=True,
        )
    block = ExitStack()
    opened = block.enter_context(
        core.init(
            checkpoint_dir=folder,
            distributed=distributed,
            preempt_mode=preempt_mode,
            tensorboard_mode=tensorboard_mode,
        )
    )
    context = to_determined_form(opened, info)
    object.__setattr__(context, "_block", block)
    atexit.register(context.abandon)
    return context


def dummy_init(
    *,
    distributed: core.DistributedContext | None = None,
    checkpoint_storage: str | Mapping[str, Any] | None = None,
    preempt_mode: core.PreemptMode = core.PreemptMode.WorkersAskChief,
    tensorboard_mode: core.TensorboardMode = core.TensorboardMode.AUTO,
    tensorboard_path: str | Path | None = None,
) -> Context:
    """Call `init` outside of a cluster, as `core._dummy_init` of Determined's scripts.

    `tensorboard_path` is ignored with a printed notice: event files are written next to the
    checkpoints. Raises InvalidCall in a trial, which must call `init`, and errors of `init`.
    """
    if get_cluster_info() is not None:
        raise InvalidCall("core._dummy_init was called in a trial: call core.init() instead")
    if tensorboard_path is not None:
        print(
            "[detcloud] core._dummy_init(tensorboard_path=...) is not used: event files are"
            " written beside the checkpoints",
            flush=True,
        )
    return init(
        distributed=distributed,
        checkpoint_storage=checkpoint_storage,
        preempt_mode=preempt_mode,
        tensorboard_mode=tensorboard_mode,
    )


def to_determined_form(context: core.Context, info: ClusterInfo | None) -> Context:
    """Return a Context with the parts of `context` and Determined's searcher.

    With `info`, the context also has Determined's facts. `context.train` gets the attribute
    `_report_trial_metrics`.
    """
    parts: dict[str, Any] = {one.name: getattr(context, one.name) for one in fields(core.Context)}
    parts["searcher"] = SearcherContext(
        context.searcher, context.info.config, is_chief=context.is_chief
    )
    # Examples reported metrics by this name before the function was public.
    vars(context.train)["_report_trial_metrics"] = partial(_report_trial_metrics, context.train)
    if info is not None:
        parts["info"] = ContextInfo(context.info, info)
    return Context(**parts)


def _report_trial_metrics(
    train: core.TrainContext,
    group: str,
    steps_completed: int,
    metrics: dict[str, Any],
    batch_metrics: list[dict[str, Any]] | None = None,
) -> None:
    train.report_metrics(group, steps_completed, metrics)


def _check_processes(info: ClusterInfo | None, distributed: core.DistributedContext | None) -> None:
    slots = 0 if info is None else sum(info.container_slot_counts)
    if slots > 1 and distributed is None:
        raise InvalidValue(
            f"the trial has {slots} slots and core.init no `distributed`: start its processes with"
            " `python3 -m determined.launch.torch_distributed`, or give"
            " core.init(distributed=core.DistributedContext(...))"
        )


def _checkpoint_folder(storage: str | Mapping[str, Any] | None) -> str | None:
    if storage is None:
        return None
    if not isinstance(storage, str | Mapping):
        raise InvalidType(
            f"checkpoint_storage is {storage!r:.80}: expected a folder or a section as in the"
            " configuration"
        )
    if isinstance(storage, Mapping):
        place = storage.get("container_path") or storage.get("host_path")
        return str(Path(str(place), str(storage.get("storage_path") or ""))) if place else ""
    if "://" in storage and not storage.startswith("file://"):
        raise InvalidValue(
            f"checkpoint_storage {storage!r}: expected a folder; an experiment on a cluster "
            "names a bucket in its configuration's checkpoint_storage"
        )
    return storage.removeprefix("file://")
