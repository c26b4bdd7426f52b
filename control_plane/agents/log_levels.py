"""Levels of log lines, recognised by the forms that loggers, warnings and tracebacks have."""

import re
from functools import cache

LEVELS = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
"""The levels of lines, in ascending order."""
# As in journald: a user who asks for INFO wants to see printed lines and to hide DEBUG lines.
LEVEL_OF_PLAIN_LINES = "INFO"
"""The level that a filter assumes for lines without a level."""

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# torchrun repeats the rank in the lines of a failed process.
_TORCH_RANK = re.compile(r"\[rank\d{1,5}\]: ?")
_TIME = r"\d{4}[-/]\d\d[-/]\d\d(?:[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)?"
# [time] [name] LEVEL, with the usual separators.
_LEVEL = re.compile(
    rf"(?:[\[(]?{_TIME}[\])]?[\s,|:-]*)?"
    r"(?:\[?[\w.]+\]?(?: - | \| |\] )){0,2}"
    r"[\[(<|]?\s*(TRACE|DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)"
    r"\s*(?:[\])>|:]|[\s-]|$)"
)
_GLOG = re.compile(r"([IWEF])\d{4} \d\d:\d\d:\d\d")
_LOWER = re.compile(r"(trace|debug|info|warning|error|critical|fatal): ")
_LEVEL_ALIASES = {
    "WARN": "WARNING",
    "FATAL": "CRITICAL",
    "I": "INFO",
    "W": "WARNING",
    "E": "ERROR",
    "F": "CRITICAL",
}
# FILE:LINE: CATEGORY: text, as Python's module `warnings` prints.
_WARNING = re.compile(r"[^\s:][^:]*:\d+: [A-Za-z_.]*Warning: ")
_TRACEBACK = re.compile(r"(?:\+ Exception Group )?Traceback \(most recent call last\):")
# The last line of a traceback: the class of the exception, and mostly a message. A number alone is
# a metric, such as `MeanSquaredError: 0.25`.
_EXCEPTION = re.compile(
    r"(?:[A-Za-z_]\w*\.)*"
    r"(?:[A-Z]\w*Error|(?:[A-Z]\w*)?Exception(?:Group)?|KeyboardInterrupt|SystemExit)"
    r"(?:: (?![-+.\de]+$)|$)"
)
_CRASH = re.compile(r"Fatal Python error: |Segmentation fault")
# The same forms for a search in bytes: each must match in every line that the forms above match.
_WARNING_BYTES = "Warning:"
_ERROR_BYTES = (
    "Traceback",
    *(
        rf"{name}(?![A-Za-z_])"
        for name in ("Error", "Exception", "ExceptionGroup", "KeyboardInterrupt", "SystemExit")
    ),
)
_CRASH_BYTES = ("Fatal", "Segmentation")


def parse_level(text: str) -> str | None:
    """Return the level in `LEVELS` of a line, by the beginning of the line.

    Return None for a line without a level. Aliases are converted: WARN is WARNING, FATAL is
    CRITICAL, and the letters of glog are their levels. A warning of Python's module `warnings` is
    WARNING. The first and the last line of a traceback are ERROR. The message of a crashed
    interpreter is CRITICAL.
    """
    # The pattern would need exponential time for long runs of colour codes and blanks.
    plain = " ".join(_COLOUR.sub("", text[:400]).split())
    plain = plain[rank.end() :] if (rank := _TORCH_RANK.match(plain)) else plain
    match = _LEVEL.match(plain) or _GLOG.match(text) or _LOWER.match(text)
    if match:
        return _LEVEL_ALIASES.get(match[1], match[1].upper())
    if _CRASH.match(plain):
        return "CRITICAL"
    if _TRACEBACK.match(plain) or _EXCEPTION.match(plain):
        return "ERROR"
    return "WARNING" if _WARNING.match(plain) else None


@cache
def level_pattern(level: str) -> re.Pattern[bytes]:
    """Return a pattern that matches every line of this level or a higher level.

    Lines with colour codes are excepted: a code may divide the name of a level. Other lines may
    match, too. Cached. Raises ValueError for an unknown level.
    """
    names = LEVELS[level_rank(level) :]
    aliases = [alias for alias, name in _LEVEL_ALIASES.items() if name in names]
    words = [*names, *(alias for alias in aliases if len(alias) > 1)]
    # Each alternative begins with a letter: `re` then skips all other bytes, five times as fast.
    glog = [rf"{alias}\d{{4}} " for alias in aliases if len(alias) == 1]
    lower = [f"{word.lower()}: " for word in words]
    warnings = [_WARNING_BYTES] if "WARNING" in names else []
    errors = _ERROR_BYTES if "ERROR" in names else ()
    return re.compile("|".join([*words, *glog, *lower, *warnings, *errors, *_CRASH_BYTES]).encode())


def level_rank(level: str | None) -> int:
    """Return the index of a level in `LEVELS`. `None` counts as `LEVEL_OF_PLAIN_LINES`.

    Raises ValueError for an unknown level.
    """
    return LEVELS.index(level or LEVEL_OF_PLAIN_LINES)
