"""Files that several processes share: JSON objects and whole folders, also untrusted ones.

An object is written beside its place and renamed there, so that no reader sees a part of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
from pathlib import Path
from typing import Any

UNTRUSTED_BYTES_MAX = 64 * 1024


def write_atomically(
    path: Path, content: object, *, mode: int = 0o600, owner: tuple[int, int] | None = None
) -> None:
    """Write `content` as JSON to a new file and rename it to `path`, owned by `owner`."""
    new_file = path.with_name(f".{path.name}.new")
    with contextlib.suppress(FileNotFoundError):
        new_file.unlink()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    with os.fdopen(os.open(new_file, flags, mode), "wb") as file:
        if owner is not None:
            os.fchown(file.fileno(), *owner)
        file.write(json.dumps(content).encode())
    new_file.rename(path)


def read_json_object(path: Path) -> dict[str, Any] | None:
    """The JSON object in the file, None where there is none."""
    try:
        return parse_json_object(path.read_bytes())
    except OSError:
        return None


def read_untrusted_json_object(path: Path) -> dict[str, Any] | None:
    """The JSON object in a small file that a trial may have written, None where there is none."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        return parse_json_object(os.read(descriptor, UNTRUSTED_BYTES_MAX))
    except OSError:
        return None
    finally:
        os.close(descriptor)


def delete_tree(path: Path) -> None:
    """Delete a directory or a link, whatever its modes, but never what a link points to."""
    if path.is_symlink():
        path.unlink()
        return
    shutil.rmtree(path, onerror=_open_and_retry)
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path, ignore_errors=True)


def _open_and_retry(function: Any, path: str, _: object) -> None:
    """Give a directory without permissions its own back and repeat what failed in it."""
    with contextlib.suppress(OSError):
        for place in (Path(path).parent, Path(path)):
            if stat.S_ISDIR(place.lstat().st_mode):
                place.chmod(0o700)
        if function in (os.unlink, os.rmdir):
            function(path)
        else:
            shutil.rmtree(path, ignore_errors=True)


def parse_json_object(content: bytes) -> dict[str, Any] | None:
    """The JSON object in the bytes, None for anything else."""
    try:
        parsed = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None
