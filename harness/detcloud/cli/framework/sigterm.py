"""The end of a command by SIGTERM."""

from __future__ import annotations

import signal
import sys


def exit_at_sigterm() -> None:
    """Let SIGTERM raise SystemExit with 128 + the signal's number, so that `finally` blocks run.

    The handler of SIGTERM is replaced.
    """
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
