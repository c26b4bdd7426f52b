"""Determined's `core`: the Core API with lengths in the configuration's unit.

A script for Determined compares `op.length` with the epochs, records or batches it has trained, as
`searcher.max_length` counts them; detcloud's own Core API counts batches.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import fields
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Any

from detcloud import core
from detcloud.compatibility.cluster_info import ClusterInfo, get_cluster_info
from detcloud.core.distributed_context import detect_distributed
from detcloud.shared.errors import DetcloudError
from detcloud.shared.trial_directory import TrialSpec


class Unit(Enum):
    """The unit that `searcher.max_length` counts in."""

    EPOCHS = "EPOCHS"
    RECORDS = "RECORDS"
    BATCHES = "BATCHES"


class SearcherOperation:
    """An operation whose `length` is in the configuration's unit."""

    def __init__(self, operation: core.SearcherOperation) -> None:
        self._operation = operation

    @property
    def length(self) -> int:
        """The whole training that is wanted, counted from the trial's start."""
        return self._operation.length_units

    def report_progress(self, length: float) -> None:
        """Report how much of `length` is done, in its unit."""
        operation = self._operation
        operation.report_progress(operation.length * (length / max(1, self.length)))

    def report_completed(self, searcher_metric: float) -> None:
        """Give the searcher its metric, once, after the report of the validation."""
        self._operation.complete(searcher_metric)


class SearcherContext:
    """Yields one operation after the other, with lengths in the configuration's unit."""

    def __init__(self, searcher: core.SearcherContext, config: Mapping[str, Any]) -> None:
        self._searcher = searcher
        self._config = config

    def operations(
        self,
        searcher_mode: core.SearcherMode = core.SearcherMode.WorkersAskChief,
        auto_ack: bool = True,
    ) -> Iterator[SearcherOperation]:
        """Yield operations until nothing is left to do here; see detcloud's own.

        The end of the loop needs no acknowledgement, so `auto_ack` changes nothing.
        """
        for operation in self._searcher.operations(searcher_mode=searcher_mode):
            yield SearcherOperation(operation)

    def acknowledge_out_of_ops(self) -> None:
        """Do nothing: the exit of the code is the acknowledgement."""

    def get_configured_units(self) -> Unit | None:
        """The unit of `searcher.max_length`; None where that is a plain number or missing."""
        length = (self._config.get("searcher") or {}).get("max_length")
        unit = next(iter(length), "").upper() if isinstance(length, Mapping) else ""
        return Unit(unit) if unit in Unit.__members__ else None


class ContextInfo:
    """The facts that a context has: a TrialSpec's fields, and those of ClusterInfo."""

    def __init__(self, spec: TrialSpec, info: ClusterInfo) -> None:
        self._spec, self._info = spec, info

    def __getattr__(self, name: str) -> Any:
        return getattr(self._spec if hasattr(self._spec, name) else self._info, name)


class Context(core.Context):
    """The parts of the Core API, which are open from `init` on.

    Scripts may leave its `with` block, call `close`, or do neither: then the process's exit code
    says how the trial ended.
    """

    # What `close` ends; without it here its generator would end with the call of `init`.
    _block: ExitStack | None = None

    def start(self) -> None:
        """Do nothing: a context is open from the beginning."""

    def __enter__(self) -> Context:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if kind is None and getattr(sys, "last_value", None) is not None:
            # Ended by what a script runs at its exit, after the exception that ends it.
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
        """End the context; the trial has ended well unless an exception is given."""
        self.__exit__(exc_type, exc_val, exc_tb)

    def abandon(self) -> None:
        """Close the files of a process that ends without `close`."""
        if self._block is not None:
            core.Context.close(self)


def init(
    *,
    distributed: core.DistributedContext | None = None,
    checkpoint_storage: str | Mapping[str, Any] | None = None,
    preempt_mode: core.PreemptMode = core.PreemptMode.WorkersAskChief,
    tensorboard_mode: core.TensorboardMode = core.TensorboardMode.AUTO,
) -> Context:
    """The Core API as Determined's scripts know it, for a `with` block or without one.

    Without a cluster checkpoints go to the folder `checkpoint_storage`; on one, where the
    configuration says. Raises DetcloudError for a storage that is none of them, and for a trial of
    several slots whose processes do not know each other.
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


def to_determined_form(context: core.Context, info: ClusterInfo | None) -> Context:
    """The context with Determined's searcher and, on a cluster, with Determined's facts too."""
    parts: dict[str, Any] = {one.name: getattr(context, one.name) for one in fields(core.Context)}
    parts["searcher"] = SearcherContext(context.searcher, context.info.config)
    if info is not None:
        parts["info"] = ContextInfo(context.info, info)
    return Context(**parts)


def _check_processes(info: ClusterInfo | None, distributed: core.DistributedContext | None) -> None:
    slots = 0 if info is None else sum(info.container_slot_counts)
    if slots > 1 and distributed is None:
        raise DetcloudError(
            f"the trial has {slots} slots and core.init no `distributed`: start its processes with"
            " `python3 -m determined.launch.torch_distributed`, or give"
            " core.init(distributed=core.DistributedContext(...))"
        )


def _checkpoint_folder(storage: str | Mapping[str, Any] | None) -> str | None:
    if storage is None:
        return None
    if isinstance(storage, Mapping):
        place = storage.get("container_path") or storage.get("host_path")
        return str(Path(str(place), str(storage.get("storage_path") or ""))) if place else ""
    if "://" in storage and not storage.startswith("file://"):
        raise DetcloudError(
            f"checkpoint_storage {storage!r}: expected a folder; an experiment on a cluster "
            "names a bucket in its configuration's checkpoint_storage"
        )
    return storage.removeprefix("file://")
