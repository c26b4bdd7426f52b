"""A folder that gets all files of an export, or no file after an error."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from infra.terraform.export import FILE


@contextlib.contextmanager
def complete_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder inside `folder`, and move the new files to `folder` at the end.

    A missing `folder` is created first, with its parents. Moved files replace files of the same
    names. The file FILE, which refers to the others, moves last. The temporary folder is deleted.

    After an error in the block, `folder` has the former content; a new `folder` is removed. After
    an error during the moves, `folder` may have some of the new files.
    """
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".partial-") as partial:
            yield Path(partial)
            for file in sorted(Path(partial).iterdir(), key=lambda path: path.name == FILE):
                file.replace(folder / file.name)
    except BaseException:
        if is_new:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise
