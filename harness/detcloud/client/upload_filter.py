"""Filter of a model folder's files: `.detignore` in gitignore syntax, and a fixed list."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pathspec import GitIgnoreSpec

from detcloud.shared.errors import DetcloudError

FILE_NAME = ".detignore"
ALWAYS_IGNORED = (
    f"/{FILE_NAME}",
    "__pycache__/",
    "*.py[co]",
    "*$py.class",
    "terraform*",
    ".terraform*",
    ".git/",
    ".vscode/",
    ".idea/",
    ".mypy_cache/",
    "/shared_fs",
)


def upload_filter(model_dir: Path) -> Callable[[str], bool]:
    """Return the `keep` function of `archive.pack` for a folder.

    Only the `.detignore` at the top is read; it cannot bring back what is always ignored.

    Raises:
        DetcloudError: `.detignore` cannot be read.
    """
    always = GitIgnoreSpec.from_lines(ALWAYS_IGNORED)
    chosen = GitIgnoreSpec.from_lines(_detignore_lines(model_dir / FILE_NAME))
    return lambda name: not always.match_file(name) and not chosen.match_file(name)


def _detignore_lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise DetcloudError(f"{path} could not be read: {error}") from None
