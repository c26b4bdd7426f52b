"""Limits on a machine's caches, and the deletion of the least recently used folders.

Folders in use by a trial are never deleted before the trial's allocation is gone.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from detcloud.agent.assignment.kernel_cache import USE_FILE, latest_folder
from detcloud.agent.package_cache import OWNERS
from detcloud.launch.packages.layers import BUILD_PREFIX
from detcloud.launch.packages.overlay import DECLARED_LAYER
from detcloud.shared.files import delete_tree, read_untrusted_json_object

KERNELS_MIB = 2048
PACKAGES_MIB = 20 * 1024
# The longest time that an installation may need to complete a layer.
BUILD_SECONDS_MAX = 6 * 3600


@dataclass(frozen=True, slots=True)
class CacheLimits:
    """The limits of one machine, in bytes."""

    kernels: int = KERNELS_MIB << 20
    """Limit on compiled kernels of all owners; 0 keeps none."""
    packages: int = PACKAGES_MIB << 20
    """Limit on declared packages of all owners."""


def prune_caches(work: Path, limits: CacheLimits, now: float) -> None:
    """Delete the least recently used folders of kernels and packages that exceed the limits.

    Folders in use are never deleted, so a limit may stay exceeded. If the newest kernel folder of
    an owner and image would have to go but is in use, create an empty successor for later trials.
    Also delete incomplete package layers that are unchanged for BUILD_SECONDS_MAX. Do nothing if
    the caches do not exist.

    Args:
        work: the agent's work directory.
        now: the time in seconds since the epoch.

    Raises:
        OSError: a link cannot be deleted, or a folder cannot be listed or created. Entries of a
            folder that cannot be deleted are left without an error.
    """
    owners = work / "environments" / OWNERS
    kernels = list(owners.glob("*/kernels/*/*"))
    used = _kernels_in_use(work)
    for folder in _surplus(kernels, limits.kernels):
        if folder not in used:
            delete_tree(folder)
        elif folder == latest_folder(folder.parent):
            folder.with_name(str(int(folder.name) + 1)).mkdir(mode=0o700, exist_ok=True)
    layers = [path for path in owners.glob(f"*/packages/{BUILD_PREFIX}*") if path.is_dir()]
    used = _layers_in_use(work)
    complete = {link.resolve() for link in owners.glob("*/packages/*") if link.is_symlink()}
    left = [one for one in layers if one.resolve() not in complete and _is_old(one, now)]
    for folder in (*left, *_surplus([one for one in layers if one not in left], limits.packages)):
        if folder.resolve() not in used and (folder in left or folder.resolve() in complete):
            _delete_layer(folder)


def _surplus(folders: list[Path], bytes_max: int) -> list[Path]:
    """Return the least recently used folders without which the others have at most `bytes_max`.

    The least recently used folder comes first. Return an empty list if all folders fit.
    """
    sizes = {folder: _folder_bytes(folder) for folder in folders}
    total = sum(sizes.values())
    surplus = []
    for folder in sorted(folders, key=_use_time):
        if total <= bytes_max:
            break
        total -= sizes[folder]
        surplus.append(folder)
    return surplus


def _folder_bytes(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += Path(parent, name).lstat().st_size
    return total


def _use_time(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except OSError:
        return 0.0


def _is_old(folder: Path, now: float) -> bool:
    return now - _use_time(folder) > BUILD_SECONDS_MAX


def _delete_layer(folder: Path) -> None:
    """Delete the links to a layer with their lock files, and then the layer's folder.

    The links are deleted first, so that no launch finds a partly deleted layer.
    """
    for link in folder.parent.iterdir():
        if link.is_symlink() and link.resolve() == folder.resolve():
            link.unlink()
            link.with_name(f"{link.name}.lock").unlink(missing_ok=True)
    delete_tree(folder)


def _kernels_in_use(work: Path) -> set[Path]:
    records = (
        read_untrusted_json_object(path) for path in work.glob(f"allocations/*/agent/{USE_FILE}")
    )
    return {Path(str(record.get("folder"))) for record in records if record}


def _layers_in_use(work: Path) -> set[Path]:
    links = work.glob(f"allocations/*/home/.python/{DECLARED_LAYER}")
    found = set()
    for link in links:
        with contextlib.suppress(OSError):
            found.add(link.resolve())
    return found
