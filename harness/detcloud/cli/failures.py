"""Errors as a line, a hint and an exit code; a refused configuration with its lines."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from typing import Any

from detcloud import DetcloudError
from detcloud.cli.commands import FAILED, REFUSED, UNREACHABLE
from detcloud.cli.terminal import clean
from detcloud.client import NoCluster
from detcloud.http import ApiError, Unreachable, detail_text

HINTS = {
    "unauthenticated": "check DETCLOUD_TOKEN, or the token in ~/.detcloud/credentials.json",
    "forbidden": "ask an administrator of the cluster for the role",
    "not_found": "`detcloud list`, `detcloud trial list EXPERIMENT` and "
    "`detcloud checkpoint list EXPERIMENT` show what exists",
    "method_not_allowed": "the cluster may be older than this command; see `detcloud version`",
    "rate_limited": "wait a moment and try again",
    "unavailable": "wait a moment and try again",
}

# What a stream without a name fails with: where the output goes has no room or is gone.
OUTPUT_LOST = frozenset({errno.ENOSPC, errno.EIO, errno.EFBIG, errno.EBADF})


class ConfigRefused(DetcloudError):
    """The cluster refused a configuration; the message holds one line for each problem."""

    def __init__(self, file: str, error: ApiError) -> None:
        lines = [detail_line(detail, file) for detail in error.details]
        # A single problem is the whole message already, less its line and hint.
        first = f"{file} was refused"
        is_said = any(detail["message"] in error.message for detail in error.details)
        super().__init__("\n".join([first if is_said else f"{first}: {error.message}", *lines]))


def report(error: Exception) -> int:
    """Writes an error to stderr and returns the exit code; a traceback with DETCLOUD_DEBUG=1."""
    if isinstance(error, OSError):
        _give_up_lost_output()
    if isinstance(error, BrokenPipeError):
        # The reader has enough.
        return FAILED
    if os.environ.get("DETCLOUD_DEBUG") == "1":
        traceback.print_exception(error)
    message, hint = _worded(error)
    lines = [clean(line) for line in message.splitlines()] or [type(error).__name__]
    print(f"error: {lines[0]}", *lines[1:], sep="\n", file=sys.stderr)
    if hint:
        print(f"hint: {hint}", file=sys.stderr)
    return exit_code(error)


def _give_up_lost_output() -> None:
    """What cannot be written now must not fail once more when Python flushes it at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def exit_code(error: Exception) -> int:
    """What the process ends with (`commands.EXIT_CODES`)."""
    if isinstance(error, ConfigRefused):
        return REFUSED
    if isinstance(error, ApiError):
        # What may be well a moment later says nothing about the request.
        return UNREACHABLE if error.transient else REFUSED
    return UNREACHABLE if isinstance(error, Unreachable | NoCluster) else FAILED


def detail_line(detail: dict[str, Any], file: str) -> str:
    """`FILE:LINE: path: message (hint)` without the parts that are not known."""
    line = detail.get("line")
    place = file if line is None else f"{file}:{line}"
    return f"{place}: {detail_text(detail)}"


def _worded(error: Exception) -> tuple[str, str | None]:
    if isinstance(error, ApiError):
        hints = [str(detail["hint"]) for detail in error.details if detail.get("hint")]
        lines = [
            detail_line({**detail, "hint": None}, "request")
            for detail in error.details
            if str(detail.get("message")) not in error.message
        ]
        hint = "; ".join(hints) or _standard_hint(error)
        return "\n".join([error.message, *lines]), hint
    if isinstance(error, Unreachable):
        return str(error), "is the cluster up? see `detcloud status`"
    if isinstance(error, DetcloudError):
        return str(error), None
    if isinstance(error, OSError):
        place = "the output could not be written" if error.errno in OUTPUT_LOST else ""
        name = error.filename or place
        return f"{name}: {error.strerror or error}" if name else str(error.strerror or error), None
    if isinstance(error, ValueError) and "expected http" in str(error):
        return str(error), None
    return f"internal: {type(error).__name__}: {error}", "DETCLOUD_DEBUG=1 shows where"


def _standard_hint(error: ApiError) -> str | None:
    if error.code == "not_found" and "template" in error.message:
        return "`detcloud template list` shows what exists"
    return HINTS.get(error.code)
