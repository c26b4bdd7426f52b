"""Standard output and errors in any encoding: no character that it lacks ends a command."""

from __future__ import annotations

import codecs
import os
import sys

ESCAPE = "detcloud.escape"


def _escape(error: UnicodeError) -> tuple[str, int]:
    """Replace the characters that an encoding lacks by the escapes of JSON, such as `\\u2713`."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    pairs = zip(units[::2], units[1::2], strict=True)
    return "".join(f"\\u{high:02x}{low:02x}" for high, low in pairs), error.end


def prepare_streams() -> None:
    """Let the standard streams write any text, and exist.

    A command that was started with `>&-` writes to /dev/null. An error handler that the user named
    in PYTHONIOENCODING is kept.
    """
    codecs.register_error(ESCAPE, _escape)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            stream = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")
            setattr(sys, name, stream)
        # Python's own choice for standard output is `strict`, or `surrogateescape` with LANG=C.
        if getattr(stream, "errors", None) in ("strict", "surrogateescape"):
            stream.reconfigure(errors=ESCAPE)


def write_data(text: str) -> None:
    """Write CSV or YAML to standard output: in UTF-8, unless that is a terminal.

    Programs that read such a file expect UTF-8, whatever the locale of this terminal is.
    """
    binary = getattr(sys.stdout, "buffer", None)
    if binary is None or sys.stdout.isatty():
        sys.stdout.write(text)
        return
    sys.stdout.flush()
    binary.write(text.encode("utf-8", ESCAPE))
