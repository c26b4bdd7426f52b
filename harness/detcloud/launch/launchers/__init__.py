"""The launchers, one file for each form of entrypoint, and the choice among them.

A new form is a file in this folder and an entry in `_LAUNCHERS`, or a call of `register_launcher`
from outside.
"""

from __future__ import annotations

from typing import Protocol

from detcloud.launch.launchers.command import CommandLauncher
from detcloud.launch.launchers.trial_class import TrialClassLauncher


class Launcher(Protocol):
    """Runs entrypoints of one form in a trial's process."""

    @property
    def can_fork(self) -> bool:
        """Whether the fork server, which has torch imported, may run such a trial."""

    def accepts(self, entrypoint: object) -> bool:
        """Whether the entrypoint, a string or a list of strings, has the launcher's form."""

    def run(self, entrypoint: str | list[str]) -> int:
        """Train in the code's directory, which is the working directory; the exit code.

        Raises DetcloudError for an entrypoint that cannot run; what the user's code raises passes
        through.
        """


# The first that accepts an entrypoint runs it; a command may be anything.
_LAUNCHERS: list[Launcher] = [TrialClassLauncher(), CommandLauncher()]


def register_launcher(launcher: Launcher) -> None:
    """Ask this launcher before all that are registered already."""
    _LAUNCHERS.insert(0, launcher)


def find_launcher(entrypoint: object) -> Launcher:
    """The launcher for an entrypoint."""
    return next(launcher for launcher in _LAUNCHERS if launcher.accepts(entrypoint))
