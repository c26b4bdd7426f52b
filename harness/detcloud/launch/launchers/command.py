"""The launcher of commands: the entrypoint is a shell line or a list of arguments."""

from __future__ import annotations

import os
import signal
from types import FrameType

from detcloud.shared.errors import DetcloudError
from detcloud.shared.shell_names import is_shell_name
from detcloud.shared.trial_directory import TRIAL_DIRECTORY_VARIABLE


class CommandLauncher:
    """Runs any program, which reports for the trial through the Core API."""

    can_fork = False

    def accepts(self, entrypoint: object) -> bool:
        """Return True, because an entrypoint that no other launcher accepts is a command."""
        return True

    def run(self, entrypoint: str | list[str]) -> int:
        """Run the command to the end and return the exit code, 128 + n after signal n.

        As a container's first process, forward SIGTERM to the programs that train; otherwise ignore
        SIGTERM in this process. The kernel kills the command if this process dies. Raises
        DetcloudError if the entrypoint is empty or invalid, or the command cannot be started.
        """
        # Trial classes never need this import: docs/benchmarks.md, "a trial's process, plain".
        import subprocess

        from detcloud.launch.stop_signals import find_catchers, find_listeners, send_sigterm
        from detcloud.shared.parent_death import end_with_parent

        arguments = command_arguments(entrypoint)
        trial = os.getpid()
        try:
            # If this process and the supervisor die, the kernel must end the command.
            process = subprocess.Popen(
                arguments,
                executable=_shell_for(arguments),
                preexec_fn=lambda: end_with_parent(trial),
            )
        except (OSError, ValueError) as error:
            raise DetcloudError(f"entrypoint {arguments!r} cannot be started: {error}") from None

        def pass_on(_number: int, _frame: FrameType | None) -> None:
            directory = os.environ.get(TRIAL_DIRECTORY_VARIABLE, "")
            send_sigterm(find_listeners(directory) or find_catchers(process.pid) or [process.pid])

        # A container's first process receives the engine's signals. Otherwise the supervisor sends
        # signals to the programs, and this process ends only when the command ends.
        signal.signal(signal.SIGTERM, pass_on if os.getpid() == 1 else signal.SIG_IGN)
        code = process.wait()
        return code if code >= 0 else 128 - code


def _shell_for(arguments: list[str]) -> str | None:
    """Return the path of bash if a command line runs `sh` and `sh` might drop variables.

    Shells other than bash drop variables with names like `my-var`. Started as `sh`, bash follows
    the rules of `sh`. Return None for another program, and without such variables. If bash is
    missing, print a warning to the trial's log and return None.
    """
    import shutil

    dropped = [name for name in os.environ if not is_shell_name(name)]
    if arguments[:1] != ["sh"] or not dropped:
        return None
    bash = shutil.which("bash")
    if bash is None:
        names = ", ".join(sorted(dropped))
        print(f"[detcloud] sh may drop the variables {names}: install bash", flush=True)
    return bash


def command_arguments(entrypoint: str | list[str]) -> list[str]:
    """Return the program and the arguments; a string becomes a line for `sh`.

    Raises DetcloudError if the entrypoint is empty or no list of strings.
    """
    if isinstance(entrypoint, str):
        parts = ["sh", "-c", entrypoint] if entrypoint.strip() else []
    else:
        parts = entrypoint
    if not parts or not all(isinstance(part, str) for part in parts):
        raise DetcloudError(
            f"entrypoint {entrypoint!r} runs nothing: use module:TrialClass, a command or a list "
            "of strings"
        )
    return parts
