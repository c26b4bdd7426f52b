"""`python -m detcloud.launch.trial`: one trial process, started in the code's directory.

The user's module is imported before anything heavy of ours, so that its first line runs soon.
Whatever happens, the report file gets one exit line.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from types import FrameType
from typing import TYPE_CHECKING

from detcloud import DetcloudError
from detcloud.launch import ending
from detcloud.launch.entrypoint import command, load_trial_class, names_trial_class
from detcloud.trial_directory import ENDLESS, ENVIRONMENT_VARIABLE, TrialDirectory, TrialSpec

if TYPE_CHECKING:
    from detcloud.pytorch import PyTorchTrial

MESSAGE_CHARACTERS_MAX = 2000


def main() -> int:
    """Runs the trial that DETCLOUD_TRIAL_DIR describes; returns the process's exit code."""
    try:
        directory = TrialDirectory.from_environment()
    except DetcloudError as error:
        return _fail(str(error))
    if directory is None:
        return _fail(f"{ENVIRONMENT_VARIABLE} is not set: it names the trial's directory")
    try:
        if directory.spec.epoch > 1:
            print(_again(directory.spec), flush=True)
        code = _run(directory)
        # The agent, which reads the log, has more to say of an exit code.
        reason, message = ("errored", "") if code else _quiet_end(directory)
    except DetcloudError as error:
        reason, message, code = "errored", str(error), _fail(str(error))
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        reason, message = "errored", f"SystemExit: {error.code}"
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr, flush=True)
    except BaseException as error:
        traceback.print_exc()
        reason, message, code = "errored", f"{type(error).__name__}: {error}", 1
    if not directory.report.has_exit():
        _write_exit(directory, reason, message)
    return code


def _again(spec: TrialSpec) -> str:
    """Tells one run from the next in the trial's log."""
    checkpoint = spec.latest_checkpoint
    place = f"checkpoint {checkpoint.uuid}" if checkpoint else "the beginning"
    return f"[detcloud] run {spec.epoch} of trial {spec.trial_id}, from {place}"


def _run(directory: TrialDirectory) -> int:
    entrypoint = directory.spec.entrypoint
    if not names_trial_class(entrypoint):
        return _run_command(command(entrypoint))
    # The interpreter puts the code's directory first by itself, unless it runs with -P.
    if "" not in sys.path and os.getcwd() not in sys.path:  # noqa: PTH109
        sys.path.insert(0, "")
    _train(load_trial_class(str(entrypoint)))
    return 0


def _train(trial_class: type[PyTorchTrial]) -> None:
    from detcloud import pytorch

    with pytorch.init() as context:
        pytorch.Trainer(trial_class(context), context).fit()


def _run_command(arguments: list[str]) -> int:
    """The command's exit code, as a shell gives it: 128 + n after signal n."""
    import subprocess

    try:
        process = subprocess.Popen(arguments)
    except (OSError, ValueError) as error:
        raise DetcloudError(f"entrypoint {arguments!r} cannot be started: {error}") from None

    def pass_on(number: int, _frame: FrameType | None) -> None:
        # A signal to the process group reached the command too; one to a container only us.
        if os.getpid() == 1:
            process.send_signal(number)

    signal.signal(signal.SIGTERM, pass_on)
    code = process.wait()
    return code if code >= 0 else 128 - code


def _quiet_end(directory: TrialDirectory) -> tuple[str, str]:
    """The reason for a command that ended well and said nothing."""
    directives = directory.directives.read()
    if directives.length == ENDLESS:
        return ("preempted" if directives.preempt else "completed"), ""
    done = directives.closed and (directives.length or 0) <= directives.answered
    return ("completed" if done else "stop_requested"), ""


def _write_exit(directory: TrialDirectory, reason: str, message: str) -> None:
    extra = {"message": message[:MESSAGE_CHARACTERS_MAX]} if message else {}
    revision = directory.directives.latest.revision
    directory.report.append("exit", reason=reason, directive_revision=revision, **extra)


def _fail(message: str) -> int:
    print(f"detcloud: {message}", file=sys.stderr, flush=True)
    return 1


if __name__ == "__main__":
    ending.register()
    ending.leave(main())
