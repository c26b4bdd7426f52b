"""The configuration's bind mounts, which become symbolic links for trials without containers.

A relative `container_path` becomes a link in the working directory. A process sees the host's
paths. An absolute `container_path` therefore works only if it equals the host's path; otherwise a
notice in the log says so.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcloud.agent.assignment.assignment import LaunchImpossible

if TYPE_CHECKING:
    from collections.abc import Mapping


class MountImpossible(LaunchImpossible):
    """A configured bind mount is invalid, or impossible on this machine."""


@dataclass(frozen=True, slots=True)
class BindMount:
    """An entry of the configuration's `bind_mounts`."""

    host_path: str
    """The absolute, normalised path on the machine."""
    container_path: str
    """The normalised path that the trial sees, relative to the working directory or absolute."""
    read_only: bool = False
    propagation: str = "rprivate"
    """The mount propagation, in the words of Docker's engine."""

    @property
    def is_link(self) -> bool:
        """Whether `container_path` is relative, so that a process gets a link."""
        return not posixpath.isabs(self.container_path)


def bind_mounts(config: Mapping[str, Any]) -> list[BindMount]:
    """Parse the configuration's bind mounts, in order. Return an empty list if none is configured.

    Raise MountImpossible if an entry is no object, if a path is missing or contains a null
    character, or if `host_path` is relative. Whether the paths exist is not checked.
    """
    mounts = []
    for entry in config.get("bind_mounts") or ():
        host, container = _parse_path(entry, "host_path"), _parse_path(entry, "container_path")
        read_only = bool(entry.get("read_only"))
        propagation = str(entry.get("propagation") or "rprivate")
        normal = posixpath.normpath(container)
        mounts.append(BindMount(posixpath.normpath(host), normal, read_only, propagation))
    return mounts


def make_links(mounts: list[BindMount], folder: Path) -> None:
    """Create a symbolic link in `folder` for each mount with a relative `container_path`.

    `folder` is the working directory with the model code. Missing parent folders of a link are
    created. Raise MountImpossible if the host path of any mount does not exist, if a link would
    lie outside the folder or inside another link, or if its place is taken. Raise OSError if a link
    or folder cannot be created for another reason. Earlier links stay.
    """
    for mount in mounts:
        if not is_there(Path(mount.host_path)):
            raise MountImpossible(
                f"bind mount: host_path {mount.host_path} does not exist on this agent's machine; "
                "create it there or correct the path"
            )
        if mount.is_link:
            _make_link(mount, folder)


def _parse_path(entry: object, name: str) -> str:
    path = entry.get(name) if isinstance(entry, dict) else None
    if not isinstance(path, str) or not path or "\0" in path:
        raise MountImpossible(f"bind mount {entry!r:.200} has no usable {name}")
    if name == "host_path" and not posixpath.isabs(path):
        raise MountImpossible(f"bind mount: host_path must be absolute, not {path!r}")
    return path


def _make_link(mount: BindMount, folder: Path) -> None:
    parts = mount.container_path.split("/")
    if parts[0] in ("..", "."):
        raise MountImpossible(
            f"bind mount: container_path {mount.container_path!r} is not inside the working "
            "directory; name a folder in it"
        )
    place = folder
    for part in parts[:-1]:
        place /= part
        if place.is_symlink():
            raise MountImpossible(
                f"bind mount: container_path {mount.container_path!r} lies inside another mount, "
                f"which is a link to {place.readlink()}; mount it elsewhere"
            )
        _make_folder(place, mount)
    try:
        (place / parts[-1]).symlink_to(mount.host_path)
    except FileExistsError:
        raise _path_in_use(mount) from None


def _make_folder(place: Path, mount: BindMount) -> None:
    try:
        place.mkdir(exist_ok=True)
    except FileExistsError:
        raise _path_in_use(mount) from None


def _path_in_use(mount: BindMount) -> MountImpossible:
    return MountImpossible(
        f"bind mount: container_path {mount.container_path!r} is taken: the model code or another "
        "mount has something there; choose another name"
    )


def is_there(path: Path) -> bool:
    """Whether a configured path exists. False if the path is too long or cannot be accessed."""
    try:
        return path.exists()
    except OSError:
        # Python raises errors for too long names and unreadable folders.
        return False
