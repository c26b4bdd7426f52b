"""The launchers, a file for each form of entrypoint, and the choice between the launchers.

To add a form, add a file in this folder and an entry in `_LAUNCHERS`, or call `register_launcher`.
"""

from __future__ import annotations

from typing import Protocol

from detcloud.launch.launchers.command import CommandLauncher
from detcloud.launch.launchers.trial_class import TrialClassLauncher


class Launcher(Protocol):
    """Runs entrypoints of a certain form in a trial's process."""

    @property
    def can_fork(self) -> bool:
        """Whether a fork of the fork server, which has imported torch, may run the trial."""

    def accepts(self, entrypoint: object) -> bool:
        """Return whether the entrypoint, a string or a list of strings, has the launcher's form."""

    def run(self, entrypoint: str | list[str]) -> int:
        """Train in the working directory, which is the code's directory, and return the exit code.

        The code is 0 after success; the trial's process ends with this code. Raises DetcloudError
        if the entrypoint cannot run. Exceptions of the user's code pass through.
        """


# The first launcher that accepts an entrypoint is used. CommandLauncher accepts everything.
_LAUNCHERS: list[Launcher] = [TrialClassLauncher(), CommandLauncher()]


def register_launcher(launcher: Launcher) -> None:
    """Register a launcher that precedes all registered launchers."""
    _LAUNCHERS.insert(0, launcher)


def find_launcher(entrypoint: object) -> Launcher:
    """Return the first registered launcher that accepts the entrypoint.

    The launcher of commands accepts every entrypoint, so a launcher is always found.
    """
    return next(launcher for launcher in _LAUNCHERS if launcher.accepts(entrypoint))
