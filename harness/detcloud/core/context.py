"""The Core API's context, and `init`, which connects the context to a cluster or to the screen."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any

from detcloud.core.checkpoint import CheckpointContext
from detcloud.core.distributed_context import DistributedContext, detect_distributed
from detcloud.core.environment import environment
from detcloud.core.event_upload import EventUploader
from detcloud.core.notice_plan import Choice, Outcome, Situation, choose_action
from detcloud.core.preempt import PreemptContext, PreemptMode
from detcloud.core.profiler import ProfilerContext
from detcloud.core.report_lines import print_report
from detcloud.core.searcher import SearcherContext
from detcloud.core.signals import SigtermHandler, print_stacks_on_sigusr1
from detcloud.core.tensorboard import EventWriter
from detcloud.core.thread_watch import EXIT_SECONDS, watch_threads_after
from detcloud.core.train import EarlyExitReason, TensorboardMode, TrainContext
from detcloud.core.unread_settings import unread_settings_teller
from detcloud.shared.clean_exit import ensure_clean_exit
from detcloud.shared.errors import DetcloudError, InvalidHP, InvalidValue
from detcloud.shared.event_parts import TENSORBOARD_FOLDER
from detcloud.shared.training_settings import LoopOfTrial
from detcloud.shared.trial_directory import (
    Directives,
    Reporter,
    TrialDirectory,
    TrialSpec,
)
from detcloud.storage import CheckpointStore, build_store
from detcloud.storage.types.directory import DirectoryStore

MESSAGE_CHARACTERS_MAX = 2000
# The time limit for hashing a large code directory at the end of a trial.
DESCRIBE_SECONDS_MAX = 5.0
# The kinds of reports that workers send, and the kinds under which they are stored.
WORKER_KINDS = {
    "metrics": "rank_metrics",
    "trial_metadata": "trial_metadata",
    "early_exit": "early_exit",
}


# An adapter declares which training loop runs before the first report of these kinds.
KINDS_OF_LOOPS = ("metrics", "progress", "completed", "checkpoint")


class AlertLevel(Enum):
    """The severity of an alert."""

    DEBUG = "debug"
    INFO = "info"
    WARN = "warn"
    ERROR = "error"


@dataclass(frozen=True)
class Context:
    """The parts of the Core API for a trial.

    `info` is the trial's specification. `read_directives` returns the cluster's newest directives.
    """

    train: TrainContext
    checkpoint: CheckpointContext
    preempt: PreemptContext
    searcher: SearcherContext
    distributed: DistributedContext
    profiler: ProfilerContext
    info: TrialSpec
    on_cluster: bool
    read_directives: Callable[[], Directives]
    loop: LoopOfTrial = field(default_factory=LoopOfTrial)

    @property
    def is_chief(self) -> bool:
        """Whether this process's reports count: rank 0, or several ranks that exchange nothing."""
        return self.distributed.rank == 0 or not self.distributed.can_exchange

    @property
    def batch_searcher(self) -> SearcherContext:
        """The searcher context whose lengths are batches; `searcher` may use Determined's
        lengths.
        """
        return self.searcher

    def alert(
        self,
        title: str | None = "",
        description: str | None = "",
        level: AlertLevel | str | None = AlertLevel.INFO,
    ) -> None:
        """Print an alert to the trial's log on stderr. The cluster does not forward alerts.

        A `level` of None means INFO. Raises InvalidValue for an unknown level.
        """
        try:
            level = AlertLevel(level or AlertLevel.INFO)
        except ValueError:
            known = ", ".join(one.value for one in AlertLevel)
            raise InvalidValue(
                f"alert level {level!r} is unknown; expected one of {known}"
            ) from None
        text = ": ".join(filter(None, (title, description)))
        print(f"[detcloud] alert ({level.value}): {text}", file=sys.stderr, flush=True)

    def plan_last_save(self, *, is_saved: bool = False) -> Choice:
        """Return whether to save before leaving: SAVE, or without time for that FINISH or KEEP.

        On SAVE, store a checkpoint. On FINISH or KEEP, leave without another save. KEEP also
        abandons the running save. Without a notice that has a deadline, return SAVE. With a notice,
        print the choice. With several processes, call this on the chief and broadcast the choice.
        `is_saved`: the latest checkpoint, stored or being stored, contains all of the work.
        """
        notice, saves = self.preempt.notice, self.checkpoint.saves
        if notice is None or notice.deadline_ms is None:
            return Choice.SAVE
        running, latest = saves.running, saves.latest
        situation = Situation(
            seconds_left=notice.deadline_ms / 1000 - time.time(),
            is_saved=is_saved,
            state_bytes=latest.bytes_total if latest is not None else None,
            bytes_per_second=saves.bytes_per_second,
            running_bytes=running.bytes_total if running is not None else None,
            running_seconds=time.monotonic() - running.began if running is not None else 0.0,
        )
        choice, why = choose_action(situation)
        print(
            f"[detcloud] notice ({notice.reason:.80}), {situation.seconds_left:.1f} s left: "
            f"{choice.value}, since {why}",
            flush=True,
        )
        if choice is Choice.KEEP:
            saves.abandon()
        return choice

    @property
    def notice_outcome(self) -> Outcome | None:
        """The outcome of the notice that the code has received. None without a notice.

        KEPT: no checkpoint was stored since the notice. SAVED: the latest was begun after the
        notice. FINISHED: the latest was begun before the notice and stored after it.
        """
        noticed_at, latest = self.preempt.noticed_at, self.checkpoint.saves.latest
        if noticed_at is None:
            return None
        if latest is None or latest.ended is None or latest.ended < noticed_at:
            return Outcome.KEPT
        return Outcome.SAVED if latest.began >= noticed_at else Outcome.FINISHED

    def close(self) -> None:
        """Wait for a background checkpoint, print an error, and release every resource."""
        with ExitStack() as stack:
            for close in (self.distributed.close, self.preempt.close, self.train.close):
                stack.callback(close)
            stack.callback(self.profiler.stop_measuring)
            self.checkpoint.finish()


@contextmanager
def init(
    *,
    hparams: dict[str, Any] | None = None,
    config: dict[str, Any] | None = None,
    checkpoint_dir: str | Path | None = None,
    seed: int = 0,
    distributed: DistributedContext | None = None,
    preempt_mode: PreemptMode = PreemptMode.WorkersAskChief,
    tensorboard_mode: TensorboardMode = TensorboardMode.AUTO,
) -> Iterator[Context]:
    """Yield the Core API's context, on a cluster if DETCLOUD_TRIAL_DIR is set.

    Without a cluster, metrics are printed and checkpoints go to `checkpoint_dir`, by default the
    user's data folder. Only then are `hparams`, `config` and `seed` used.

    A launcher's worker detects the other processes; other groups need `distributed`. In the MANUAL
    `tensorboard_mode` only your code writes event files. On a cluster, SIGTERM is a preemption.

    The block's end waits for a background checkpoint and raises its error. InvalidHP becomes
    SystemExit(0); the trial ends without a restart. Other exceptions pass and count as failures.
    Raises DetcloudError if another process has this rank.
    """
    print_stacks_on_sigusr1()
    directory = TrialDirectory.from_environment()
    distributed = distributed or detect_distributed()
    if directory is None:
        spec = TrialSpec(hparams=hparams or {}, config=config or {}, trial_seed=seed)
        local = _context_without_cluster(spec, checkpoint_dir, distributed, preempt_mode)
        local.train.tensorboard_mode = tensorboard_mode
        with _run_without_cluster(local):
            yield local
        return
    if distributed is not None:
        directory.set_rank(distributed.rank)
    directory.claim_rank()
    context = _context_on_cluster(directory, distributed, preempt_mode)
    context.train.tensorboard_mode = tensorboard_mode
    if (directory.spec.config.get("profiling") or {}).get("enabled"):
        context.profiler.start_measuring()
    describing = _start_describing(directory)
    sigterm = SigtermHandler(context.preempt)
    try:
        yield context
        # The exit line must follow the checkpoint's report.
        context.checkpoint.wait()
    except GeneratorExit:
        # The process ends within the block; the agent reads the exit code.
        raise
    except BaseException as error:
        context.checkpoint.loading.note_error(error)
        # Report before waiting: other processes of a gang fail next, and may end this process too.
        _try_to_report_refusal(error, directory, context)
        failure = context.checkpoint.finish()
        describing.join(DESCRIBE_SECONDS_MAX)
        if failure is not None and _is_success(error):
            _report_failed_exit(failure, directory, context)
            raise failure from error
        _report_failed_exit(error, directory, context)
        if isinstance(error, InvalidHP):
            raise SystemExit(0) from error
        raise
    else:
        describing.join(DESCRIBE_SECONDS_MAX)
        _report_exit(directory, context, None)
    finally:
        exit_seconds = float(directory.spec.config.get("exit_timeout") or EXIT_SECONDS)
        with watch_threads_after(exit_seconds), closing(directory), closing(context):
            sigterm.restore()
    sigterm.raise_postponed()


@contextmanager
def _run_without_cluster(context: Context) -> Iterator[None]:
    try:
        yield
        context.checkpoint.wait()
    except InvalidHP as error:
        context.train.report_early_exit(EarlyExitReason.INVALID_HP)
        print(f"[detcloud] the hyperparameters make no sense: {error}", flush=True)
        raise SystemExit(0) from error
    finally:
        context.close()


def _context_on_cluster(
    directory: TrialDirectory, distributed: DistributedContext | None, mode: PreemptMode
) -> Context:
    spec = directory.spec
    if distributed is not None and spec.threads is not None:
        spec = replace(spec, threads=max(1, spec.threads // distributed.local_size))
    store = None if spec.storage is None else build_store(spec.storage)

    tell_of_unused_progress, loop = _progress_notice(), LoopOfTrial()
    tell_of_unread_settings = unread_settings_teller(loop, spec.config)

    def report(kind: str, **fields: object) -> None:
        if distributed is not None and distributed.rank:
            if kind == "progress":
                tell_of_unused_progress()
            if kind not in WORKER_KINDS:
                return
            kind = WORKER_KINDS[kind]
        elif kind in KINDS_OF_LOOPS:
            tell_of_unread_settings()
        directory.report.append(kind, **fields)
        print_report(kind, **fields)

    stored_at = store.root if store is not None else None
    events = _event_writer(spec, stored_at or directory.path / "out")
    distributed = distributed or DistributedContext(spec.rank, spec.size)
    read, note_listener = directory.directives.read, directory.note_listener
    preempt = PreemptContext(read, distributed, mode, note_listener)
    made = _make_context(spec, read, report, store, events, preempt, distributed, True)
    return replace(made, loop=loop)


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


def _context_without_cluster(
    spec: TrialSpec,
    checkpoint_dir: str | Path | None,
    distributed: DistributedContext | None,
    mode: PreemptMode,
) -> Context:
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
    return _make_context(spec, Directives, report, store, events, preempt, distributed, False)


def context_without_cluster(spec: TrialSpec) -> Context:
    """Return a context without a cluster, for code that only needs the trial's specification."""
    return _context_without_cluster(spec, None, DistributedContext(), PreemptMode.WorkersAskChief)


def _event_writer(spec: TrialSpec, root: Path) -> EventWriter:
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
    on_cluster: bool,
) -> Context:
    ensure_clean_exit()
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
    )


def _is_first_of_node(distributed: DistributedContext) -> bool:
    return distributed.can_exchange and distributed.local_rank == 0


def _user_data_folder() -> Path:
    home = os.environ.get("XDG_DATA_HOME")
    return (Path(home) if home else Path.home() / ".local" / "share") / "detcloud"


def _start_describing(directory: TrialDirectory) -> threading.Thread:
    """Start and return the daemon thread that reports the environment."""
    arguments = (directory, Path.cwd())
    describing = threading.Thread(target=_report_environment, args=arguments, daemon=True)
    describing.start()
    return describing


def _report_environment(directory: TrialDirectory, code: Path) -> None:
    """Report the environment, except on workers. Print an error instead of raising it."""
    if directory.is_worker:
        return
    try:
        directory.report.append("environment", **environment(code, directory.spec.threads))
    except Exception as error:
        print(f"[detcloud] the environment was not recorded: {error!r}", file=sys.stderr)


def _report_failed_exit(error: BaseException, directory: TrialDirectory, context: Context) -> None:
    """Report the exit after `error`. Print a failed report instead of raising."""
    try:
        _report_exit(directory, context, error)
    except DetcloudError as failure:
        print(f"[detcloud] the end was not reported: {failure}", file=sys.stderr, flush=True)


def _report_exit(directory: TrialDirectory, context: Context, error: BaseException | None) -> None:
    reason = _exit_reason(context, error)
    # The chief reports a good end for all. A rank with an earlier attempt's report reports too.
    is_own = reason in ("errored", "invalid_hp")
    speaks = is_own or not directory.is_worker or directory.has_report
    reports = [directory.report] if speaks else []
    if directory.is_worker and reason != "errored" and context.distributed.local_rank == 0:
        # An agent reads only the reports of the own node, so a worker of each node reports.
        reports.append(directory.open_node_report())
    if not reports:
        return
    message = {}
    if is_own and error is not None:
        text = f"{type(error).__name__}: {error}"
        message = {"message": text[:MESSAGE_CHARACTERS_MAX]}
    if reason == "invalid_hp":
        _report_refusal(directory, context, error)
    revision = directory.directives.latest.revision
    outcome = context.notice_outcome if context.distributed.rank == 0 else None
    if outcome is not None:
        message["notice_outcome"] = outcome.value
    for report in reports:
        report.append("exit", reason=reason, directive_revision=revision, **message)


def _try_to_report_refusal(
    error: BaseException, directory: TrialDirectory, context: Context
) -> None:
    """Report an InvalidHP; ignore other errors. After a failure, `_report_exit` tries again."""
    if isinstance(error, InvalidHP):
        with suppress(DetcloudError):
            _report_refusal(directory, context, error)


def _report_refusal(directory: TrialDirectory, context: Context, error: object) -> None:
    """Report and print, once, that the hyperparameters are refused. Any rank may do this."""
    refusal = EarlyExitReason.INVALID_HP
    if context.train.early_exit is not refusal:
        why = str(error or "") or "no reason given"
        text = "the trial ends, without a restart; a search may draw others in its place each time"
        print(f"[detcloud] hyperparameters refused (InvalidHP): {why}: {text}", flush=True)
        directory.report.append("early_exit", reason=refusal.value)
        context.train.early_exit = refusal


def _is_success(error: BaseException) -> bool:
    """Return whether `error` is the SystemExit of a successful end."""
    return isinstance(error, SystemExit) and error.code in (None, 0)


def _exit_reason(context: Context, error: BaseException | None) -> str:
    """Return the reason of the exit report, from `error` or else from the run's state."""
    if error is not None and _is_success(error):
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
    if context.preempt.was_seen and context.preempt.is_acknowledged:
        return "preempted"
    # The code returned by itself: the trial is complete if no operation is left.
    return "completed" if context.searcher.is_finished() else "stop_requested"
