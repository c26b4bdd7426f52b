"""A trial's process, `python -m detcloud.launch.trial`, started in the code's directory.

The user's module is imported before all heavy modules of detcloud, so that its first line runs soon
(docs/benchmarks.md, `starts`). Every run adds exactly one exit line to the report file.
"""

from __future__ import annotations

import sys
import traceback

from detcloud.compatibility.path import offer_determined
from detcloud.launch.fast_exit import exit_process, install_fast_exit
from detcloud.launch.gang import Gang
from detcloud.launch.launchers import find_launcher
from detcloud.shared.clean_exit import offer_clean_exit
from detcloud.shared.errors import DetcloudError
from detcloud.shared.launcher_names import is_trial_class
from detcloud.shared.trial_directory import (
    ENDLESS,
    TRIAL_DIRECTORY_VARIABLE,
    TrialDirectory,
    TrialSpec,
)

MESSAGE_CHARACTERS_MAX = 2000


def main() -> int:
    """Run the trial that DETCLOUD_TRIAL_DIR describes, and return the exit code of the process.

    Append an `exit` line to the trial's report file unless the trial's code has done so. Return the
    code of a command or of a SystemExit, else 0. Return 1 if the directory is missing or invalid,
    or after an exception. The traceback is printed, for a DetcloudError only the message. Raises
    DetcloudError if the exit line cannot be written.
    """
    try:
        directory = TrialDirectory.from_environment()
    except DetcloudError as error:
        return _print_failure(str(error))
    if directory is None:
        return _print_failure(
            f"{TRIAL_DIRECTORY_VARIABLE} is not set: it names the trial's directory"
        )
    # Open the file now: `has_exit` ignores exit lines of earlier runs, before the present end.
    report = directory.report
    try:
        if directory.spec.epoch > 1:
            print(_run_header(directory.spec), flush=True)
        offer_clean_exit()
        if notice := offer_determined(directory.spec.config):
            print(f"[detcloud] {notice}", flush=True)
        _check_machines(directory)
        _await_debugger(directory)
        code = find_launcher(directory.spec.entrypoint).run(directory.spec.entrypoint)
        # The agent adds a message from the log after a nonzero exit code.
        reason, message = ("errored", "") if code else _reason_of_unreported_exit(directory)
    except DetcloudError as error:
        reason, message, code = "errored", str(error), _print_failure(str(error))
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        reason, message = "errored", f"SystemExit: {error.code}"
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr, flush=True)
    except BaseException as error:
        traceback.print_exc()
        reason, message, code = "errored", f"{type(error).__name__}: {error}", 1
    if not report.has_exit():
        _write_exit(directory, reason, message)
    return code


def _check_machines(directory: TrialDirectory) -> None:
    """Check the machines of a gang, if the cluster wants a check.

    Raises DetcloudError if the result cannot be reported.
    """
    if directory.spec.gang_check:
        # Imported here, because only gangs are checked (docs/benchmarks.md, `starts`).
        from detcloud.launch.gang_check import check_machines

        check_machines(directory)


def _await_debugger(directory: TrialDirectory) -> None:
    """Wait for a debugger if this process trains a class, before the first line of the class.

    Do nothing for a trial without a debugger. Other processes wait in `core.init`. Raises
    DetcloudError if no debugger can be attached, or none is attached in time.
    """
    if not directory.spec.is_debugged:
        return
    gang = Gang.from_environment()
    if is_trial_class(directory.spec.entrypoint) and gang.slots * gang.nodes == 1:
        # Imported here, because few trials are debugged.
        from detcloud.core.debugger import await_debugger

        await_debugger(directory)


def _run_header(spec: TrialSpec) -> str:
    """Return the log's first line of a run after the first.

    The line names the run and the checkpoint from which the run starts. If a later checkpoint is
    damaged, the line adds this checkpoint, the cause of the damage, and the number of batches to
    train again. Without any checkpoint, the line adds the batches up to the latest known
    validation.
    """
    checkpoint = spec.latest_checkpoint
    place = f"checkpoint {checkpoint.uuid}" if checkpoint else "the beginning"
    header = f"[detcloud] run {spec.epoch} of trial {spec.trial_id}, from {place}"
    damaged = spec.damaged_checkpoint
    if damaged is None:
        return header if checkpoint else header + _lost_training(spec)
    lost = damaged.steps_completed - spec.steps_completed
    return (
        f"{header} at batch {spec.steps_completed}, since checkpoint {damaged.uuid} at batch"
        f" {damaged.steps_completed} is damaged; batches to train again: {lost}; {damaged.cause}"
    )


def _lost_training(spec: TrialSpec) -> str:
    """Return the text on repeated training in the log's header, for a run without a checkpoint.

    The caller has checked that the run has no checkpoint. The text names the batches up to the
    latest validation that the cluster knows. Return "" if no validation is known.
    """
    lost = spec.validated_steps or 0
    if lost <= 0:
        return ""
    return f"; no checkpoint was stored, so {lost} trained batches are trained again"


def _reason_of_unreported_exit(directory: TrialDirectory) -> tuple[str, str]:
    """Return the reason and message of the exit, for a command that ended with 0 without a report.

    The message is "". The reason is `completed` if the cluster needs no more training, else
    `preempted` after a request to stop, such as a notice of the machine's end. Without a request,
    the reason is `completed` in an endless training, else `stop_requested`. Raises DetcloudError if
    the directives, the file with the cluster's instructions, are malformed.
    """
    directives = directory.directives.read()
    is_endless = directives.length == ENDLESS
    if not is_endless and directives.closed and (directives.length or 0) <= directives.answered:
        return "completed", ""
    if directives.preempt:
        return "preempted", ""
    return ("completed" if is_endless else "stop_requested"), ""


def _write_exit(directory: TrialDirectory, reason: str, message: str) -> None:
    """Append the `exit` line, with reason and message, to the trial's report.

    Cut the message to MESSAGE_CHARACTERS_MAX, and omit an empty message. Raises DetcloudError if
    the line cannot be written.
    """
    extra = {"message": message[:MESSAGE_CHARACTERS_MAX]} if message else {}
    revision = directory.directives.latest.revision
    directory.report.append("exit", reason=reason, directive_revision=revision, **extra)


def _print_failure(message: str) -> int:
    """Print the message to stderr, and return the exit code 1."""
    print(f"detcloud: {message}", file=sys.stderr, flush=True)
    return 1


if __name__ == "__main__":
    install_fast_exit()
    exit_process(main())
