"""A worker of a trial class, `python -m detcloud.launch.trial_worker FILE:CLASS`."""

from __future__ import annotations

import sys
import traceback

from detcloud.launch.arguments import HELP_OPTIONS
from detcloud.launch.fast_exit import exit_process, install_fast_exit
from detcloud.launch.launchers.trial_class import train_class
from detcloud.shared.errors import DetcloudError

USAGE = "usage: python3 -m detcloud.launch.trial_worker FILE:CLASS"


def main() -> int:
    """Train the class of the command line in this process, and return the exit code.

    Return 0 after success, and after printing the usage for `-h`. Return 1 after an exception,
    which is printed, and for invalid arguments. Return the code of a SystemExit: 0 for None, 1 for
    a text.
    """
    if sys.argv[1:2] and sys.argv[1] in HELP_OPTIONS:
        print(f"{USAGE}\n\nTrains the class as the worker of a launcher, or alone.")
        return 0
    if len(sys.argv) != 2 or ":" not in sys.argv[1]:
        print(USAGE, file=sys.stderr)
        return 1
    try:
        train_class(sys.argv[1])
    except DetcloudError as error:
        print(f"detcloud: {error}", file=sys.stderr, flush=True)
        return 1
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    install_fast_exit()
    exit_process(main())
