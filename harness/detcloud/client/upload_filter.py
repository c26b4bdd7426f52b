"""The filter of a model folder's files: `.detignore` in gitignore syntax, and a fixed list."""

from __future__ import annotations

import warnings
from pathlib import Path

from pathspec import GitIgnoreSpec

from detcloud.shared.detignore import FILE_NAME, read_patterns
from detcloud.shared.errors import LeftOutWarning

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
        self._chosen = read_patterns(model_dir / FILE_NAME)

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
