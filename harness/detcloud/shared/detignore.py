"""The reader of `.detignore`: patterns in the syntax of .gitignore.

Importing this module needs the package pathspec, which images of trials may lack.
"""

from __future__ import annotations

import re
import warnings
from pathlib import Path

from pathspec import GitIgnoreSpec

from detcloud.shared.errors import DetcloudError

FILE_NAME = ".detignore"

_CHARACTER_CLASS = re.compile(r"\[:\w+:\]")


def read_patterns(path: Path) -> GitIgnoreSpec:
    """Return the patterns in a file `.detignore`. A missing file has no patterns.

    Raises DetcloudError if the file cannot be read, or one of its lines is not a pattern.
    """
    lines = _detignore_lines(path)
    for number, line in enumerate(lines, 1):
        _check_pattern(path, number, line)
    with warnings.catch_warnings():
        # Python warns of `[` within a character class. The syntax is Git's: ignore the warning.
        warnings.simplefilter("ignore", FutureWarning)
        return GitIgnoreSpec.from_lines(lines)


def _check_pattern(path: Path, number: int, line: str) -> None:
    """Raise a DetcloudError that names the file and line number if `line` is not a pattern.

    Valid are the patterns of .gitignore, comments and blank lines. Refused are also character
    classes such as [:alpha:].
    """
    reason = None
    if _CHARACTER_CLASS.search(line) and not line.startswith("#"):
        reason = "classes such as [:alpha:] are not supported; write a range such as [a-zA-Z]"
    else:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)
                GitIgnoreSpec.from_lines([line])
        except (ValueError, re.error) as error:
            reason = f"{error}; expected a pattern of .gitignore, such as data/ or *.pt"
    if reason is not None:
        raise DetcloudError(f"{path}:{number}: {line!r} is not a pattern: {reason}")


def _detignore_lines(path: Path) -> list[str]:
    try:
        # Editors of Windows write a byte order mark, which Git skips, too.
        text = path.read_text(encoding="utf-8-sig")
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise DetcloudError(f"{path} could not be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise DetcloudError(
            f"{path} could not be read: byte {error.start} is not UTF-8; save the file as UTF-8"
        ) from None
    return text.split("\n")
