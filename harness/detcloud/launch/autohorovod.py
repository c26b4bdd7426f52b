"""The launcher `python3 -m detcloud.launch.autohorovod`, which chooses an installed launcher."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from importlib.util import find_spec

from detcloud.launch import horovod, torch_distributed
from detcloud.launch.arguments import parse_launcher_arguments
from detcloud.launch.gang import Gang
from detcloud.launch.program import end_with_trial

NAME = "autohorovod"
DESCRIPTION = (
    "One slot: runs the worker alone. Several: Horovod where it is installed, else\n"
    "torch_distributed. Options of either may stand before --. TRIAL is file:Class."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the workers with the suitable launcher.

    On a single slot, replace this process by the worker, without the overrides, which are the
    user's options before `--`. On several slots of one machine, replace this process by
    `horovodrun` if this program and the package are installed. Otherwise print a notice and use
    torch_distributed without the overrides. Then return 0, 1 after a failure, 128 + n after
    signal n.

    Raises SystemExit: 1 for invalid arguments, 0 after the usage for `-h`. Raises OSError if the
    system cannot run the worker of a single slot, or `horovodrun`.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    arguments = parse_launcher_arguments(NAME, words, DESCRIPTION)
    gang = Gang.from_environment()
    if gang.slots * gang.nodes == 1:
        end_with_trial()
        os.execvp(arguments.command[0], arguments.command)
    if shutil.which("horovodrun") and find_spec("horovod") and gang.nodes == 1:
        return horovod.main(words)
    print(
        "[detcloud] Horovod is not installed or the trial is on several machines: its workers are "
        "started by torch_distributed",
        flush=True,
    )
    # Options of horovodrun mean nothing to torch's launcher.
    rest = words[words.index("--") + 1 :] if "--" in words else words
    return torch_distributed.main(rest)


if __name__ == "__main__":
    sys.exit(main())
