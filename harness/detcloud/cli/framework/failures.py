"""Reports of errors on stderr: a line, a hint and an exit code."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from typing import Any

from detcloud.cli.framework.exit_codes import FAILED, REFUSED, UNREACHABLE
from detcloud.cli.rendering.terminal import sanitize
from detcloud.client import NoCluster
from detcloud.shared.errors import DetcloudError
from detcloud.shared.http import ApiError, Unreachable, WayClosed, detail_text

HINTS = {
    "unauthenticated": "check DETCLOUD_TOKEN, or sign in again with `detcloud login`",
    "forbidden": "ask an administrator of the cluster for the role",
    "not_found": "`detcloud list`, `detcloud trial list EXPERIMENT` and "
    "`detcloud checkpoint list EXPERIMENT` show what exists",
    "method_not_allowed": "the cluster may be older than this command; see `detcloud version`",
    "rate_limited": "wait a moment and try again",
    "unavailable": "wait a moment and try again",
}

# The command that lists existing objects, by the beginning of the API's "not found" message.
LISTS_BY_BEGINNING = {
    "there is no experiment ": "`detcloud list`",
    "there is no trial ": "`detcloud trial list EXPERIMENT`",
    "there is no checkpoint ": "`detcloud checkpoint list EXPERIMENT`",
    "there is no agent ": "`detcloud agent list`",
    "there is no token ": "`detcloud token list`",
    "there is no model ": "`detcloud model list`",
    "there is no version ": "`detcloud model list-versions NAME`",
    "there is no command ": "`detcloud command list --all`",
    "there is no notebook ": "`detcloud notebook list --all`",
    "there is no shell ": "`detcloud shell list --all`",
    "there is no webhook ": "`detcloud webhook list`",
    "there is no delivery ": "`detcloud webhook deliveries WEBHOOK`",
    "there is no template ": "`detcloud template list`",
    "job ": "`detcloud job list`",
    "encountered the following errors: job ": "`detcloud job list`",
    "Pool ": "`detcloud resource-pool list`",
}

# Errors of writing to stdout or stderr: the device is full or closed.
LOST_OUTPUT_ERRORS = frozenset({errno.ENOSPC, errno.EIO, errno.EFBIG, errno.EBADF})


class NotFoundError(DetcloudError):
    """An empty result for a name that the user gave. The exit code is REFUSED, as for an
    HTTP 404.
    """


class RefusedConfigError(DetcloudError):
    """A configuration that the cluster refused. The message has a line for each problem."""

    def __init__(self, file: str, error: ApiError) -> None:
        """Make the message from the problems of an API error.

        Args:
            file: the text for the source of the configuration, mostly a path, at the beginning of
                each line.
            error: the cluster's refusal. Its message is included if no detail repeats it.
        """
        lines = [detail_line(detail, file) for detail in error.details]
        # The message of a single problem repeats the problem, without its line and hint.
        first = f"{file} was refused"
        has_details = any(detail["message"] in error.message for detail in error.details)
        super().__init__("\n".join([first if has_details else f"{first}: {error.message}", *lines]))


def report_failure(error: Exception) -> int:
    """Write an error and mostly a hint to stderr, and return the exit code of `exit_code`.

    With DETCLOUD_DEBUG=1, also print the traceback. For a BrokenPipeError, write nothing and return
    FAILED, because the reader of stdout has stopped. For every OSError, redirect stdout to
    /dev/null if the buffered output cannot be written. Control characters of the message are
    replaced.
    """
    if isinstance(error, OSError):
        _discard_unwritable_output()
    if isinstance(error, BrokenPipeError):
        # The reader of stdout, such as `head`, has stopped reading.
        return FAILED
    if os.environ.get("DETCLOUD_DEBUG") == "1":
        traceback.print_exception(error)
    message, hint = _message_and_hint(error)
    lines = [sanitize(line) for line in message.splitlines()] or [type(error).__name__]
    print(f"error: {lines[0]}", *lines[1:], sep="\n", file=sys.stderr)
    if hint:
        print(f"hint: {sanitize(hint)}", file=sys.stderr)
    return exit_code(error)


def _discard_unwritable_output() -> None:
    """Flush stdout, and redirect stdout to /dev/null for the rest of the process if the buffered
    output cannot be written.

    Otherwise Python would fail on the same output again at exit.
    """
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def exit_code(error: Exception) -> int:
    """Return the exit code of an error: REFUSED, UNREACHABLE or FAILED.

    - REFUSED: the cluster refused the request or the configuration, or found nothing for a name.
    - UNREACHABLE: no cluster, no answer, or an API error with status 429 or 5xx.
    - FAILED: all other errors, also other DetcloudErrors.
    """
    if isinstance(error, RefusedConfigError | NotFoundError):
        return REFUSED
    if isinstance(error, ApiError):
        # A transient error, such as 503, does not mean that the cluster refused the request.
        return UNREACHABLE if error.is_transient else REFUSED
    return UNREACHABLE if isinstance(error, Unreachable | NoCluster) else FAILED


def detail_line(detail: dict[str, Any], file: str) -> str:
    """Return `FILE:LINE: path: message (hint)` for a problem of a configuration. An unknown line,
    path or hint is omitted, but FILE is always shown.

    Args:
        detail: the problem, with the text `message` and optionally `line`, `path` and `hint`.
        file: the text for FILE.
    """
    line = detail.get("line")
    place = file if line is None else f"{file}:{line}"
    return f"{place}: {detail_text(detail)}"


def _message_and_hint(error: Exception) -> tuple[str, str | None]:
    """Return the text of an error, which may have several lines, and a hint or None. Nothing is
    sanitized.

    The hint of an ApiError joins the hints of its details, or is the standard hint. Most
    DetcloudErrors have no hint. An unexpected error, without a text for users, begins with
    `internal:`.
    """
    if isinstance(error, ApiError):
        hints = [str(detail["hint"]) for detail in error.details if detail.get("hint")]
        lines = [
            detail_line({**detail, "hint": None}, "request")
            for detail in error.details
            if str(detail.get("message")) not in error.message
        ]
        hint = "; ".join(hints) or _standard_hint(error)
        return "\n".join([error.message, *lines]), hint
    if isinstance(error, Unreachable) and not isinstance(error, WayClosed):
        return str(error), "check that the cluster is up: `detcloud status`"
    if isinstance(error, DetcloudError):
        return str(error), None
    if isinstance(error, OSError):
        place = "the output could not be written" if error.errno in LOST_OUTPUT_ERRORS else ""
        name = error.filename or place
        return f"{name}: {error.strerror or error}" if name else str(error.strerror or error), None
    if isinstance(error, ValueError) and "expected http" in str(error):
        return str(error), None
    return f"internal: {type(error).__name__}: {error}", "DETCLOUD_DEBUG=1 shows where"


def _standard_hint(error: ApiError) -> str | None:
    """Return the standard hint for the code of an API error. Return None if the code has no hint.

    For `not_found`, the hint names the command that lists the missing kind of object. For a message
    of an unknown form, the hint names several lists.
    """
    if error.code == "not_found":
        for beginning, command in LISTS_BY_BEGINNING.items():
            if error.message.startswith(beginning):
                return f"{command} shows what exists"
    return HINTS.get(error.code)
