"""The filter of a model folder's files: `.detignore` in gitignore syntax, and a fixed list."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

from pathspec import GitIgnoreSpec

from detcloud.shared.errors import DetcloudError, LeftOutWarning

FILE_NAME = ".detignore"
# Files that no training code reads: caches, Git's data, settings of editors.
QUIETLY_IGNORED = (
    f"/{FILE_NAME}",
    "__pycache__/",
    "*.py[co]",
    "*$py.class",
    ".git/",
    ".vscode/",
    ".idea/",
    ".mypy_cache/",
)
# Determined excludes these names, too. Training code may use the names by chance: users are warned.
NOTED_IGNORED = (
    "terraform*",
    ".terraform*",
    "/shared_fs",
)
ALWAYS_IGNORED = QUIETLY_IGNORED + NOTED_IGNORED
NAMES_SHOWN = 5

_CHARACTER_CLASS = re.compile(r"\[:\w+:\]")


class UploadFilter:
    """A function that decides which files of a model folder are uploaded, as `keep` of
    `archive.pack`.

    Files that the folder's own `.detignore` or ALWAYS_IGNORED matches are excluded. Files
    `.detignore` in subfolders are not read.

    Raises:
        DetcloudError: `.detignore` cannot be read, or one of its lines is not a pattern.
    """

    def __init__(self, model_dir: Path) -> None:
        self.noted: list[str] = []
        """The names that NOTED_IGNORED excluded so far, in the order of the calls."""
        self._quiet = GitIgnoreSpec.from_lines(QUIETLY_IGNORED)
        self._noted = GitIgnoreSpec.from_lines(NOTED_IGNORED)
        self._chosen = _read_patterns(model_dir / FILE_NAME)

    def __call__(self, name: str) -> bool:
        """Return whether to upload the path `name`, which ends with `/` for a folder.

        Append the name to `noted` if only NOTED_IGNORED excludes it.
        """
        if self._quiet.match_file(name) or self._chosen.match_file(name):
            return False
        if self._noted.match_file(name):
            self.noted.append(name)
            return False
        return True

    def rules(self) -> list[list[tuple[bool, str]]]:
        """Return the rules as regular expressions in groups, for `SyncedNames`.

        Each rule has whether it excludes a path, and the expression. A path is excluded if any
        group excludes it.
        """
        return [
            [
                (bool(pattern.include), pattern.regex.pattern)
                for pattern in spec.patterns
                if pattern.include is not None and pattern.regex is not None
            ]
            for spec in (self._quiet, self._chosen, self._noted)
        ]

    def warn_of_noted(self) -> None:
        """Issue a LeftOutWarning with the names in `noted`. Do nothing if `noted` is empty."""
        if not self.noted:
            return
        names = ", ".join(self.noted[:NAMES_SHOWN])
        more = len(self.noted) - NAMES_SHOWN
        rest = f" and {more} more" if more > 0 else ""
        rules = ", ".join(NOTED_IGNORED)
        warnings.warn(
            f"not uploaded: {names}{rest}; names like {rules} are always left out, so rename what "
            f"your code needs, or list it in {FILE_NAME} to silence this",
            LeftOutWarning,
            stacklevel=2,
        )


def upload_filter(model_dir: Path) -> UploadFilter:
    """Return the UploadFilter of a folder. Raises DetcloudError if `.detignore` is invalid."""
    return UploadFilter(model_dir)


def _read_patterns(path: Path) -> GitIgnoreSpec:
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
