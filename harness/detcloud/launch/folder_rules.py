"""The rules by which a notebook's or shell's folder is kept: `.detignore` and mounts."""

from __future__ import annotations

import re
from pathlib import Path

from detcloud.launch.folder_archive import FolderRules, Keep
from detcloud.shared.bundled_packages import offer_bundle
from detcloud.shared.errors import DetcloudError

DETIGNORE = ".detignore"
MOUNTS = Path("/proc/self/mountinfo")
_MOUNT_POINT = 4
_ESCAPE = re.compile(rb"\\([0-7]{3})")


def read_rules(folder: Path) -> tuple[FolderRules, str]:
    """Return the rules for a folder, and the reason why `.detignore` is not obeyed, or "".

    Everything is kept if `.detignore` is invalid, or the package that reads it is missing.
    """
    keep, problem = _read_detignore(folder)
    return FolderRules(keep, find_mounts(folder, _read_mounts())), problem


def find_mounts(folder: Path, mountinfo: bytes) -> frozenset[str]:
    """Return the mounts below a folder, as paths relative to the folder.

    `folder` is absolute and free of links. `mountinfo` is the content of /proc/self/mountinfo,
    where spaces and other characters in paths are octal escapes.
    """
    above = f"{folder}/"
    fields = (line.split(b" ") for line in mountinfo.splitlines())
    places = (row[_MOUNT_POINT] for row in fields if len(row) > _MOUNT_POINT)
    names = (_ESCAPE.sub(_unescape, place).decode("utf-8", "surrogateescape") for place in places)
    return frozenset(name.removeprefix(above) for name in names if name.startswith(above))


def _unescape(match: re.Match[bytes]) -> bytes:
    return bytes([int(match[1], 8) & 0xFF])


def _read_mounts() -> bytes:
    """Return the content of MOUNTS, or b"" on systems without the file."""
    try:
        return MOUNTS.read_bytes()
    except OSError:
        return b""


def _read_detignore(folder: Path) -> tuple[Keep, str]:
    """Return the filter of a folder's `.detignore`, and the reason for an unread file, or ""."""
    path = folder / DETIGNORE
    if not path.exists():
        return _keep_all, ""
    try:
        # Imported here, because images may lack the package pathspec. Clusters in a cloud bring it.
        offer_bundle("detignore", "pathspec")
        from detcloud.shared.detignore import read_patterns

        patterns = read_patterns(path)
    except ImportError as error:
        return _keep_all, f"the package {error.name} is not installed"
    except DetcloudError as error:
        return _keep_all, str(error)
    return lambda name: not patterns.match_file(name), ""


def _keep_all(_: str) -> bool:
    return True
