"""Standard output and errors in any encoding. Characters that the encoding lacks are escaped."""

from __future__ import annotations

import codecs
import os
import sys

ESCAPE = "detcloud.escape"


def _escape(error: UnicodeError) -> tuple[str, int]:
    """Return JSON escapes, for example `\\u2713`, for characters that the encoding lacks.

    This is an error handler of codecs: the second value is the place to continue at. A character
    beyond the first 65,536 becomes two escapes. An error of decoding is raised again.
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    pairs = zip(units[::2], units[1::2], strict=True)
    return "".join(f"\\u{high:02x}{low:02x}" for high, low in pairs), error.end


def prepare_streams() -> None:
    """Make stdout and stderr able to write any text: characters that the encoding lacks are
    escaped.

    The error handler ESCAPE is registered with `codecs`. A stream that was closed with `>&-` is
    replaced by /dev/null. An error handler that the user chose in PYTHONIOENCODING is kept, unless
    the choice is `strict` or `surrogateescape`.
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
    """Write CSV or YAML to standard output, in UTF-8 unless stdout is a terminal. No newline is
    added, and the data is not flushed.

    Programs that read a file or a pipe expect UTF-8, even if the locale has another encoding.

    Raises:
        OSError: the text cannot be written, for example because the reader of a pipe has stopped.
    """
    binary = getattr(sys.stdout, "buffer", None)
    if binary is None or sys.stdout.isatty():
        sys.stdout.write(text)
        return
    sys.stdout.flush()
    binary.write(text.encode("utf-8", ESCAPE))
