"""Usage errors: two lines on stderr, and exit code 2."""

from __future__ import annotations

import sys

from detcloud.cli.framework.exit_codes import USAGE


class UsageError(Exception):
    """Words of the command line that do not form a command."""

    def __init__(self, message: str, hint: str) -> None:
        """Store the message of the error, and the hint, the text after `hint: `."""
        super().__init__(message)
        self.hint = hint


def report_usage_error(message: str, hint: str) -> int:
    """Print the message and the hint to stderr, after `error: ` and `hint: `, and return the exit
    code USAGE. Control characters of the message are replaced, not of the hint.
    """
    # Imported here, since `--version` and `--help` do not need it (bench/commands.py).
    from detcloud.cli.rendering.terminal import sanitize

    print(f"error: {sanitize(message)}\nhint: {hint}", file=sys.stderr)
    return USAGE
