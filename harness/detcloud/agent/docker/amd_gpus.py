"""The device files and groups with which a container uses AMD GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from detcloud.agent.slots import Slot


def amd_device_entries(slots: Sequence[Slot]) -> list[dict[str, str]]:
    """Return the device entries of the trial's AMD GPUs: /dev/kfd and a render file for each GPU.

    Other GPUs of the machine have no file in the container. Empty for other slots.
    """
    return [
        {"PathOnHost": path, "PathInContainer": path, "CgroupPermissions": "rw"}
        for path in _files(slots)
    ]


def amd_groups(slots: Sequence[Slot]) -> list[str]:
    """Return the ids of the groups that own the device files, for example of `render`. Sorted.

    A missing file is skipped; the engine then refuses the container. Empty for other slots.
    """
    groups = set()
    for path in _files(slots):
        try:
            groups.add(Path(path).stat().st_gid)
        except OSError:
            continue
    # The files of root's own group are open to all users, or to root only.
    return [str(group) for group in sorted(groups - {0})]


def _files(slots: Sequence[Slot]) -> list[str]:
    return list(dict.fromkeys(path for slot in slots for path in slot.files))
