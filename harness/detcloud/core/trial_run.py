"""The block in which training code uses the Core API: `init`."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from detcloud.core.context import Context
from detcloud.core.context_builder import build_cluster_context, build_local_context
from detcloud.core.distributed_context import DistributedContext, detect_distributed
from detcloud.core.environment import environment
from detcloud.core.exit_report import (
    is_success,
    report_exit,
    report_failed_exit,
    try_to_report_refusal,
)
from detcloud.core.preempt import PreemptMode
from detcloud.core.signals import SigtermHandler, print_stacks_on_sigusr1
from detcloud.core.thread_watch import EXIT_SECONDS, watch_threads_after
from detcloud.core.train import EarlyExitReason, TensorboardMode
from detcloud.shared.errors import InvalidHP
from detcloud.shared.trial_directory import TrialDirectory, TrialSpec

# The time limit for hashing a large code directory at the end of a trial.
DESCRIBE_SECONDS_MAX = 5.0


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
    """Connect the code of a block to its trial, and yield the Core API's context.

    On a cluster, DETCLOUD_TRIAL_DIR names the trial. Without this variable, metrics are printed and
    checkpoints are stored in a folder. A worker of detcloud's launchers finds the trial's other
    processes.

    The end of the block waits for a background checkpoint and raises its error. On a cluster, the
    end of the block reports the exit, and a thread later ends a process that other threads keep
    alive. An InvalidHP becomes SystemExit(0): the trial ends without a restart. Other exceptions
    leave the block unchanged and count as failures, except a SystemExit with code 0 or None.

    On a cluster, SIGTERM is a request to stop. A handler of SIGTERM that the script sets before
    `init` is called after the stop is noted. If this handler raises an exception and the code calls
    `should_preempt`, the exception is raised at the end of the block, after the checkpoint. SIGUSR1
    prints the stacks of all threads.

    Args:
        hparams: the hyperparameters of a run without a cluster. A cluster has its own values.
        config: the configuration of a run without a cluster.
        checkpoint_dir: the folder of checkpoints without a cluster, by default a folder of the
            user's data.
        seed: the trial's seed without a cluster.
        distributed: the trial's processes, if no launcher of detcloud started them.
        preempt_mode: the ranks that may ask whether to stop.
        tensorboard_mode: the writer of event files.

    Raises:
        DetcloudError: another process has this rank, or the specification, the checkpoint store or
            a launcher's variables are invalid. Or `debugger.enabled` is set, and no debugger was
            attached in time.
        ValueError: `preempt_mode` is unknown.
    """
    print_stacks_on_sigusr1()
    directory = TrialDirectory.from_environment()
    distributed = distributed or detect_distributed()
    if directory is None:
        spec = TrialSpec(hparams=hparams or {}, config=config or {}, trial_seed=seed)
        local = build_local_context(spec, checkpoint_dir, distributed, preempt_mode)
        local.train.tensorboard_mode = tensorboard_mode
        with _run_without_cluster(local):
            yield local
        return
    if distributed is not None:
        directory.set_rank(distributed.rank)
    directory.claim_rank()
    _await_debugger(directory, distributed)
    context = build_cluster_context(directory, distributed, preempt_mode)
    context.train.tensorboard_mode = tensorboard_mode
    if (directory.spec.config.get("profiling") or {}).get("enabled"):
        context.profiler.start_measuring()
    with _run_on_cluster(directory, context):
        yield context


def _await_debugger(directory: TrialDirectory, distributed: DistributedContext | None) -> None:
    """Wait in all processes until a debugger is attached to rank 0, if the configuration says so.

    Raises DetcloudError if no debugger can be attached, or none is attached in time.
    """
    if not directory.spec.is_debugged:
        return
    # Imported here, because few trials are debugged.
    from detcloud.core.debugger import await_debugger

    await_debugger(directory)
    if distributed is not None and distributed.can_exchange:
        # Otherwise the waiting ranks would come to a time limit.
        distributed.broadcast(None)


@contextmanager
def _run_on_cluster(directory: TrialDirectory, context: Context) -> Iterator[None]:
    """Run the block of a context on a cluster, report the environment and the exit, and close.

    Wait for a background checkpoint and raise its error, also after a successful SystemExit. An
    InvalidHP is reported and becomes SystemExit(0). At the end, start the watch of other threads
    and raise an exception that the script's own SIGTERM handler has raised meanwhile. Raises
    DetcloudError if the exit of a good end cannot be reported.
    """
    describing = _start_describing(directory)
    sigterm = SigtermHandler(context.preempt)
    try:
        yield
        # The exit line must follow the checkpoint's report.
        context.checkpoint.wait()
    except GeneratorExit:
        # The process ends within the block; the agent reads the exit code.
        raise
    except BaseException as error:
        context.checkpoint.loading.note_error(error)
        # Report before waiting: other processes of a gang fail next, and may end this process too.
        try_to_report_refusal(error, directory, context)
        failure = context.checkpoint.finish()
        describing.join(DESCRIBE_SECONDS_MAX)
        if failure is not None and is_success(error):
            report_failed_exit(failure, directory, context)
            raise failure from error
        report_failed_exit(error, directory, context)
        if isinstance(error, InvalidHP):
            raise SystemExit(0) from error
        raise
    else:
        describing.join(DESCRIBE_SECONDS_MAX)
        report_exit(directory, context, None)
    finally:
        exit_seconds = float(directory.spec.config.get("exit_timeout") or EXIT_SECONDS)
        with watch_threads_after(exit_seconds), closing(directory), closing(context):
            sigterm.restore()
    sigterm.raise_postponed()


@contextmanager
def _run_without_cluster(context: Context) -> Iterator[None]:
    """Run the block of a context without a cluster, wait for a background checkpoint, and close.

    Raise the checkpoint's error. An InvalidHP is printed and becomes SystemExit(0).
    """
    try:
        yield
        context.checkpoint.wait()
    except InvalidHP as error:
        context.train.report_early_exit(EarlyExitReason.INVALID_HP)
        print(f"[detcloud] the hyperparameters make no sense: {error}", flush=True)
        raise SystemExit(0) from error
    finally:
        context.close()


def _start_describing(directory: TrialDirectory) -> threading.Thread:
    """Start and return the daemon thread that reports the environment, with the code's digest."""
    arguments = (directory, Path.cwd())
    describing = threading.Thread(target=_report_environment, args=arguments, daemon=True)
    describing.start()
    return describing


def _report_environment(directory: TrialDirectory, code: Path) -> None:
    """Append the `environment` report: packages, devices, threads, host and the code's digest.

    `code` is the folder of the training code. Do nothing on workers, the ranks other than the
    chief. Print an error to stderr instead of raising. Print nothing if the run has ended in the
    meantime.
    """
    if directory.is_worker:
        return
    try:
        fields = environment(code, directory.spec.threads)
        if directory.spec.is_debugged:
            # Imported here, because few trials are debugged.
            from detcloud.shared.debugger_place import debugger_place

            fields["debugger"] = debugger_place(directory.spec)
        directory.report.append("environment", **fields)
    except Exception as error:
        if not directory.report.is_closed:
            print(f"[detcloud] the environment was not recorded: {error!r}", file=sys.stderr)
