"""Runs a command in an overlay: `python -m detcloud.launch.packages.enter OVERLAY COMMAND...`.

Stages in a container use it, because only the container knows its own PATH. The variables are set
without a shell, since shells drop names that they cannot hold.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from detcloud.launch.packages.install import SCRIPTS_FOLDER
from detcloud.launch.packages.overlay import overlay_variables

DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"


def main(arguments: list[str]) -> int:
    """Replace this process by the command, with the overlay's variables.

    The arguments are the folder of the overlay, the trial's virtual environment, and the command.
    Print the reason and return 127 if the command cannot be started. Raises OSError or
    StopIteration if the overlay has no folder of scripts.
    """
    overlay, command = Path(arguments[0]), arguments[1:]
    scripts = next((overlay / SCRIPTS_FOLDER).iterdir())
    path = os.environ.get("PATH") or DEFAULT_PATH
    os.environ.update(overlay_variables(overlay, path, scripts))
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"{command[0]} could not be started: {error}", file=sys.stderr, flush=True)
    return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
