"""Words that make no command: two lines on stderr, and exit code 2."""

from __future__ import annotations

import sys

from detcloud.cli.framework.exit_codes import USAGE


class UsageError(Exception):
    """The words given are no command: the message and a hint."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def report_usage_error(message: str, hint: str) -> int:
    """Prints both lines to stderr and returns the exit code."""
    # Imported here, since `--version` and `--help` do not need it (bench/commands.py).
    from detcloud.cli.rendering.terminal import sanitize

    print(f"error: {sanitize(message)}\nhint: {hint}", file=sys.stderr)
    return USAGE
