"""The launcher of commands: an entrypoint that is a shell line or a list of arguments."""

from __future__ import annotations

import os
import signal
from types import FrameType

from detcloud.shared.errors import DetcloudError


class CommandLauncher:
    """Runs a program of any kind; the Core API in it reports for the trial."""

    can_fork = False

    def accepts(self, entrypoint: object) -> bool:
        """True: an entrypoint of no other form is a command."""
        return True

    def run(self, entrypoint: str | list[str]) -> int:
        """Run the command; its exit code as a shell gives it, 128 + n after signal n."""
        # Trials of a class never need it: docs/benchmarks.md, "a trial's process, plain".
        import subprocess

        from detcloud.shared.parent_death import end_with_parent

        arguments = command_arguments(entrypoint)
        trial = os.getpid()
        try:
            # Where the supervisor dies too, nobody else would end it.
            process = subprocess.Popen(arguments, preexec_fn=lambda: end_with_parent(trial))
        except (OSError, ValueError) as error:
            raise DetcloudError(f"entrypoint {arguments!r} cannot be started: {error}") from None

        def pass_on(number: int, _frame: FrameType | None) -> None:
            # A signal to the process group reached the command too; one to a container only us.
            if os.getpid() == 1:
                process.send_signal(number)

        signal.signal(signal.SIGTERM, pass_on)
        code = process.wait()
        return code if code >= 0 else 128 - code


def command_arguments(entrypoint: str | list[str]) -> list[str]:
    """The program and its arguments; a string goes through the shell.

    Raises DetcloudError if there is nothing to run.
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
