"""The fingerprint of a failure: a digest of the last Python traceback in a trial's log.

Two runs with equal fingerprints failed at the same place of the code with the same error. The
control plane ends a trial whose runs fail alike on different machines.
"""

from __future__ import annotations

import hashlib
import re

_HEADER = "Traceback (most recent call last):"
_RANK = re.compile(r"\[(?:rank=?\d+)\]:? ?")
_FRAME = re.compile(r'  File "(?P<path>[^"]*)", line (?P<line>\d+), in (?P<function>.+)')
# Errors of a launcher after the failure of a process. The real failure is in an earlier traceback.
_WRAPPERS = re.compile(r"ChildFailedError|ProcessRaisedException|ProcessExitedException")
# Errors that depend on the network, on other processes or on time. A restart may help.
_TRANSIENT = re.compile(
    r"connection|timeout|timed ?out|unavailable|temporar|throttl|slowdown|http|urlerror|protocol"
    r"|\bssl|gaierror|brokenpipe|\bdist[a-z]*error|nccl|incompleteread|endpoint|no space left"
    r"|resource busy|interrupted",
    re.IGNORECASE,
)
# Numbers, addresses, ids and temporary names differ between runs.
_VARYING = re.compile(r"0x[0-9a-f]+|[0-9a-f]{8,}|\d+", re.IGNORECASE)
_DIGEST_CHARACTERS = 16
_ERROR_CHARACTERS = 500


def failure_fingerprint(log_tail: str) -> str:
    """Return the fingerprint of the last traceback, 16 hexadecimal digits.

    Return "" without a complete traceback, and for an error that may pass, such as a timeout. A
    frame counts by file name, line and function. Numbers in the error's message do not count.

    Args:
        log_tail: the end of the log of a failed run.
    """
    lines = log_tail.splitlines()
    for start in range(len(lines) - 1, -1, -1):
        if not lines[start].endswith(_HEADER):
            continue
        frames, error = _read_traceback(lines, start)
        if not frames or not error:
            continue
        name = error.partition(":")[0]
        if _WRAPPERS.search(name):
            continue
        if _TRANSIENT.search(error):
            return ""
        text = "\n".join((*frames, _VARYING.sub("0", error[:_ERROR_CHARACTERS])))
        return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:_DIGEST_CHARACTERS]
    return ""


def _read_traceback(lines: list[str], start: int) -> tuple[list[str], str]:
    """Return the frames and the error of the traceback with the header at line `start`.

    Lines of other ranks are skipped. The error is "" if the log ends before it.
    """
    prefix = lines[start].removesuffix(_HEADER)
    is_ranked = _RANK.fullmatch(prefix) is not None
    frames = []
    for line in lines[start + 1 :]:
        if is_ranked and not line.startswith(prefix):
            continue
        text = line.removeprefix(prefix)
        if frame := _FRAME.match(text):
            name = frame["path"].replace("\\", "/").rpartition("/")[2]
            frames.append(f"{name}:{frame['line']}:{frame['function']}")
        elif text and not text.startswith(" "):
            return frames, text
    return frames, ""
