"""Builds the Core API's context, with or without a cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from detcloud.core.checkpoint import CheckpointContext
from detcloud.core.context import Context, report_nothing
from detcloud.core.distributed_context import DistributedContext
from detcloud.core.event_upload import EventUploader
from detcloud.core.first_step import FirstStep
from detcloud.core.preempt import PreemptContext, PreemptMode
from detcloud.core.profiler import ProfilerContext
from detcloud.core.report_lines import print_report
from detcloud.core.searcher import SearcherContext
from detcloud.core.slot_share import limit_device_memory
from detcloud.core.tensorboard import EventWriter
from detcloud.core.train import TrainContext
from detcloud.core.unread_settings import unread_settings_teller
from detcloud.shared.clean_exit import ensure_clean_exit
from detcloud.shared.event_parts import TENSORBOARD_FOLDER
from detcloud.shared.training_settings import LoopOfTrial
from detcloud.shared.trial_directory import Directives, Reporter, TrialDirectory, TrialSpec
from detcloud.storage import CheckpointStore, HashingStore, build_store
from detcloud.storage.patient_store import PatientStore
from detcloud.storage.types.directory import DirectoryStore

# The kinds of reports that workers send, and the kinds under which they are stored.
WORKER_KINDS = {
    "metrics": "rank_metrics",
    "trial_metadata": "trial_metadata",
    "early_exit": "early_exit",
    "alert": "alert",
}
# An adapter declares which training loop runs before the first report of these kinds.
KINDS_OF_LOOPS = ("metrics", "progress", "completed", "checkpoint")


def build_cluster_context(
    directory: TrialDirectory, distributed: DistributedContext | None, mode: PreemptMode
) -> Context:
    """Return the context of a trial on a cluster. The caller closes the context.

    Reports go to the report file of this process's rank and to the log. Workers report only the
    kinds of WORKER_KINDS; reports of different kinds are dropped, and progress with a notice. The
    threads of the specification are divided among the processes of the node.

    `distributed` is None for a single process of a node. In the mode WorkersAskChief, connected
    processes start a thread for the agreement to stop. Raises DetcloudError if the checkpoint store
    cannot be opened, and ValueError for an unknown `mode`.
    """
    limit_device_memory()
    spec = directory.spec
    if distributed is not None and spec.threads is not None:
        spec = replace(spec, threads=max(1, spec.threads // distributed.local_size))
    store = None if spec.storage is None else _open_store(spec, spec.storage)

    tell_of_unused_progress, loop = _progress_notice(), LoopOfTrial()
    tell_of_unread_settings = unread_settings_teller(loop, spec.config)

    def report_line(kind: str, **fields: object) -> None:
        directory.report.append(kind, **fields)

    first_step = FirstStep(spec, report_line if directory.rank == 0 else None)

    def report(kind: str, **fields: object) -> None:
        if distributed is not None and distributed.rank:
            if kind == "progress":
                tell_of_unused_progress()
            if kind not in WORKER_KINDS:
                return
            kind = WORKER_KINDS[kind]
        elif kind in KINDS_OF_LOOPS:
            tell_of_unread_settings()
            # Adapters report the first step directly. Other code reports metrics or a checkpoint.
            if (steps := _trained_steps(kind, fields)) is not None:
                first_step.report(steps)
        directory.report.append(kind, **fields)
        print_report(kind, **fields)

    stored_at = store.root if store is not None else None
    events = _event_writer(spec, stored_at or directory.path / "out")
    distributed = distributed or DistributedContext(spec.rank, spec.size)
    read, note_listener = directory.directives.read, directory.note_listener
    preempt = PreemptContext(read, distributed, mode, note_listener)
    made = _make_context(spec, read, report, store, events, preempt, distributed, first_step)
    return replace(made, loop=loop)


def _open_store(spec: TrialSpec, storage: Mapping[str, Any]) -> CheckpointStore:
    """Return the store of `storage`. The store of a bucket waits while the bucket is lost.

    A bucket with a checkpoint of this trial has existed. The same holds for the bucket of the
    cluster, for which the agent has credentials, because the deployment created the bucket. Raises
    DetcloudError if the store cannot be opened.
    """
    store = build_store(storage)
    if not isinstance(store, HashingStore) or store.root is not None:
        return store
    latest = spec.latest_checkpoint
    own = spec.config.get("checkpoint_storage") or {}
    is_of_cluster = own.get("type") is None and storage.get("credentials") is not None
    return PatientStore(
        store,
        f"{spec.experiment_id}/{spec.trial_id}",
        has_existed=is_of_cluster or (latest is not None and latest.trial_id == spec.trial_id),
    )


def _trained_steps(kind: str, fields: Mapping[str, object]) -> int | None:
    """Return the number of trained batches that a report shows. Return None if it shows none.

    Checkpoints, and metrics of training and validations, have numbers of batches.
    """
    steps = fields.get("steps_completed")
    is_training = kind == "checkpoint" or fields.get("group") in ("training", "validation")
    return steps if is_training and isinstance(steps, int) else None


def _progress_notice() -> Callable[[], None]:
    """Return a function that prints, once, that this rank's progress is ignored."""
    is_told = False

    def tell() -> None:
        nonlocal is_told
        if not is_told:
            is_told = True
            print(
                "[detcloud] the progress reported by this process is ignored: only "
                "rank 0's progress counts. Report it there",
                flush=True,
            )

    return tell


def build_local_context(
    spec: TrialSpec,
    checkpoint_dir: str | Path | None,
    distributed: DistributedContext | None,
    mode: PreemptMode,
) -> Context:
    """Return a context without a cluster. The caller closes the context.

    Rank 0 prints metrics and the UUIDs of checkpoints; no report file is written. Checkpoints and
    event files go to `checkpoint_dir`, by default the user's data folder. Without `distributed`,
    the process is alone. The directives, elsewhere the cluster's instructions, name no stop and no
    length.

    In the mode WorkersAskChief, connected processes start a thread for the agreement to stop.
    Raises ValueError for an unknown `mode`.
    """
    root = (
        Path(checkpoint_dir) if checkpoint_dir is not None else _user_data_folder() / "checkpoints"
    )
    store = DirectoryStore(root.absolute())
    events = _event_writer(spec, store.root)
    distributed = distributed or DistributedContext()

    def report(kind: str, **fields: object) -> None:
        if not distributed.rank:
            print_report(kind, **fields)

    preempt = PreemptContext(Directives, distributed, mode)
    return _make_context(spec, Directives, report, store, events, preempt, distributed, None)


def context_without_cluster(spec: TrialSpec) -> Context:
    """Return a context without a cluster, for code that only needs the trial's specification."""
    return build_local_context(spec, None, DistributedContext(), PreemptMode.WorkersAskChief)


def _event_writer(spec: TrialSpec, root: Path) -> EventWriter:
    """Return the writer of the trial's event files below `root`. Create no file yet."""
    name = f"{spec.allocation_id}.{spec.rank}"
    return EventWriter(root / _event_place(spec), name, spec.discarded_from)


def _event_place(spec: TrialSpec) -> str:
    """Return the key prefix of a trial's TensorBoard files in a checkpoint store."""
    return f"{TENSORBOARD_FOLDER}/{spec.experiment_id}/{spec.trial_id}"


def _make_context(
    spec: TrialSpec,
    read: Callable[[], Directives],
    report: Reporter,
    store: CheckpointStore | None,
    events: EventWriter,
    preempt: PreemptContext,
    distributed: DistributedContext,
    first_step: FirstStep | None,
) -> Context:
    """Return a context with the given parts, and make this process end cleanly.

    A `first_step` of None means that no cluster runs the trial.
    Ranks other than the chief write no event files. Only the chief on a cluster starts an upload of
    event files, unless checkpoints are stored in a folder. `train` raises the error of a failed
    background checkpoint before each report.
    """
    ensure_clean_exit()
    on_cluster = first_step is not None
    search = spec.config.get("searcher") or {}
    is_worker = distributed.can_exchange and distributed.rank > 0

    def report_unless_failed(kind: str, **fields: object) -> None:
        checkpoint.saves.raise_failure()
        report(kind, **fields)

    events_written = None if is_worker else events
    train = TrainContext(report_unless_failed, read, events_written, spec.metadata, spec.metric)
    if on_cluster and not is_worker and store is not None and store.root is None:
        train.uploader = EventUploader(events.folder, store, _event_place(spec), spec.epoch)
    checkpoint = CheckpointContext(
        spec,
        store,
        report,
        on_cluster=on_cluster,
        distributed=distributed,
        metric_at=train.metric_at,
        first_step=first_step,
    )
    return Context(
        train=train,
        checkpoint=checkpoint,
        preempt=preempt,
        searcher=SearcherContext(
            read,
            report,
            preempt,
            on_cluster=on_cluster,
            distributed=distributed,
            is_timed=bool(search.get("time_metric")),
            takes_values=search.get("name", "" if on_cluster else "custom") == "custom",
            await_checkpoint=checkpoint.wait,
        ),
        distributed=distributed,
        profiler=ProfilerContext(
            report,
            # A single process of each machine measures. Without a launcher, only rank 0 measures.
            is_active=on_cluster and (distributed.rank == 0 or _is_first_of_node(distributed)),
        ),
        info=spec,
        on_cluster=on_cluster,
        read_directives=read,
        first_step=first_step or FirstStep(),
        _report=report if on_cluster else report_nothing,
    )


def _is_first_of_node(distributed: DistributedContext) -> bool:
    """Return whether this process is the first of a launcher's processes on the node."""
    return distributed.can_exchange and distributed.local_rank == 0


def _user_data_folder() -> Path:
    """Return detcloud's folder in XDG_DATA_HOME, by default in ~/.local/share. Create nothing."""
    home = os.environ.get("XDG_DATA_HOME")
    return (Path(home) if home else Path.home() / ".local" / "share") / "detcloud"
