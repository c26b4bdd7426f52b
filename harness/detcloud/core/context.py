"""`init`: the Core API, wired to the trial directory or, without a cluster, to the screen."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from detcloud import DetcloudError, InvalidHP
from detcloud.core.checkpoint import CheckpointContext
from detcloud.core.distributed import DistributedContext
from detcloud.core.environment import environment
from detcloud.core.preempt import PreemptContext
from detcloud.core.searcher import SearcherContext
from detcloud.core.tensorboard import EventWriter
from detcloud.core.train import EarlyExitReason, TrainContext
from detcloud.storage import CheckpointStore, build_store
from detcloud.storage.directory import TENSORBOARD, DirectoryStore
from detcloud.trial_directory import (
    Directives,
    Preempt,
    Reporter,
    TrialDirectory,
    TrialSpec,
)

MESSAGE_CHARACTERS_MAX = 2000
# A large code directory must not hold up a trial that has a deadline.
DESCRIBE_SECONDS_MAX = 5.0


@dataclass(frozen=True)
class Context:
    """What a script gets from `init`; `read_directives` gives the cluster's newest wishes."""

    train: TrainContext
    checkpoint: CheckpointContext
    preempt: PreemptContext
    searcher: SearcherContext
    distributed: DistributedContext
    info: TrialSpec
    on_cluster: bool
    read_directives: Callable[[], Directives]


@contextmanager
def init(
    *,
    hparams: dict[str, Any] | None = None,
    config: dict[str, Any] | None = None,
    checkpoint_dir: str | Path | None = None,
    seed: int = 0,
) -> Iterator[Context]:
    """The Core API, on a cluster where DETCLOUD_TRIAL_DIR is set.

    The arguments are for runs without a cluster, where metrics are printed and checkpoints go to
    `checkpoint_dir` or the user's data folder. On a cluster the end of the block writes the exit
    line: InvalidHP ends the trial with a good exit code, any other exception is an error.
    """
    directory = TrialDirectory.from_environment()
    if directory is None:
        spec = TrialSpec(hparams=hparams or {}, config=config or {}, trial_seed=seed)
        local = _local(spec, checkpoint_dir)
        try:
            yield local
        finally:
            local.train.close()
        return
    context = _on_cluster(directory)
    described = threading.Thread(target=_describe, args=(directory, Path.cwd()), daemon=True)
    described.start()
    restore_signal = _stop_on_sigterm(context.preempt)
    try:
        yield context
    except BaseException as error:
        described.join(DESCRIBE_SECONDS_MAX)
        _end_with(error, directory, context)
        if isinstance(error, InvalidHP):
            raise SystemExit(0) from error
        raise
    else:
        described.join(DESCRIBE_SECONDS_MAX)
        _end(directory, context, None)
    finally:
        restore_signal()
        context.train.close()
        directory.report.close()


def _on_cluster(directory: TrialDirectory) -> Context:
    spec = directory.spec
    store = None if spec.storage is None else build_store(spec.storage)

    def report(kind: str, **fields: object) -> None:
        directory.report.append(kind, **fields)
        _announce(kind, **fields)

    kept = store.root if isinstance(store, DirectoryStore) else directory.path / "out"
    events = _events(spec, kept)
    return _context(spec, directory.directives.read, report, store, events, on_cluster=True)


def _local(spec: TrialSpec, checkpoint_dir: str | Path | None) -> Context:
    root = Path(checkpoint_dir) if checkpoint_dir is not None else _data_folder() / "checkpoints"
    store = DirectoryStore(root.absolute())
    events = _events(spec, store.root)
    return _context(spec, Directives, _announce, store, events, on_cluster=False)


def _events(spec: TrialSpec, root: Path) -> EventWriter:
    folder = root / TENSORBOARD / str(spec.experiment_id) / str(spec.trial_id)
    return EventWriter(folder, f"{spec.allocation_id}.{spec.rank}")


def _context(
    spec: TrialSpec,
    read: Callable[[], Directives],
    report: Reporter,
    store: CheckpointStore | None,
    events: EventWriter,
    *,
    on_cluster: bool,
) -> Context:
    preempt = PreemptContext(read)
    return Context(
        train=TrainContext(report, read, events),
        checkpoint=CheckpointContext(spec, store, report, on_cluster=on_cluster),
        preempt=preempt,
        searcher=SearcherContext(read, report, preempt, on_cluster=on_cluster),
        distributed=DistributedContext(spec.rank, spec.size),
        info=spec,
        on_cluster=on_cluster,
        read_directives=read,
    )


def _data_folder() -> Path:
    home = os.environ.get("XDG_DATA_HOME")
    return (Path(home) if home else Path.home() / ".local" / "share") / "detcloud"


def _announce(kind: str, **fields: object) -> None:
    """The reports worth a line in the trial's log, or on the screen without a cluster."""
    if kind == "metrics" and isinstance(metrics := fields["metrics"], dict):
        values = " ".join(f"{name}={_shown(value)}" for name, value in metrics.items())
        text = f"{fields['group']} at batch {fields['steps_completed']}: {values}"
    elif kind == "checkpoint":
        text = f"checkpoint {fields['uuid']} at batch {fields['steps_completed']}"
    else:
        return
    # A name that the terminal's encoding lacks must not end the training.
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    print(f"[detcloud] {text}".encode(encoding, "replace").decode(encoding), flush=True)


def _shown(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else f"{value!s:.80}"


def _describe(directory: TrialDirectory, code: Path) -> None:
    """Reports the environment; a trial must not fail because it cannot describe its machine."""
    try:
        directory.report.append("environment", **environment(code, directory.spec.threads))
    except Exception as error:
        print(f"[detcloud] the environment was not recorded: {error!r}", file=sys.stderr)


def _stop_on_sigterm(preempt: PreemptContext) -> Callable[[], None]:
    """Turns SIGTERM into a preemption at the next batch; returns what undoes that."""
    if threading.current_thread() is not threading.main_thread():
        return lambda: None

    def request(_signal: int, _frame: FrameType | None) -> None:
        preempt.request(Preempt(time.time_ns() // 1_000_000, "SIGTERM"))

    previous = signal.signal(signal.SIGTERM, request)

    def restore() -> None:
        signal.signal(signal.SIGTERM, previous)

    return restore


def _end_with(error: BaseException, directory: TrialDirectory, context: Context) -> None:
    """A full disk, which refuses the exit line too, must not hide what ended the trial."""
    try:
        _end(directory, context, error)
    except DetcloudError as unwritten:
        print(f"[detcloud] the end was not reported: {unwritten}", file=sys.stderr, flush=True)


def _end(directory: TrialDirectory, context: Context, error: BaseException | None) -> None:
    reason = _exit_reason(context, error)
    message = {}
    if reason in ("errored", "invalid_hp"):
        text = f"{type(error).__name__}: {error}"
        message = {"message": text[:MESSAGE_CHARACTERS_MAX]}
    if reason == "invalid_hp" and context.train.early_exit is not EarlyExitReason.INVALID_HP:
        context.train.report_early_exit(EarlyExitReason.INVALID_HP)
    revision = directory.directives.latest.revision
    directory.report.append("exit", reason=reason, directive_revision=revision, **message)


def _exit_reason(context: Context, error: BaseException | None) -> str:
    if isinstance(error, SystemExit) and error.code in (None, 0):
        error = None
    if isinstance(error, InvalidHP):
        return "invalid_hp"
    if error is not None:
        return "errored"
    if context.train.early_exit is not None:
        stopped = context.train.early_exit is EarlyExitReason.USER_REQUESTED_STOP
        return "stop_requested" if stopped else "invalid_hp"
    if context.searcher.outcome is not None:
        return context.searcher.outcome.value
    if context.preempt.noticed:
        return "preempted"
    # The code returned by itself: done where nothing was left to do, else by its own wish.
    return "completed" if context.searcher.is_finished() else "stop_requested"
