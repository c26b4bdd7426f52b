"""The configuration's bind mounts, and their form for processes, which have none: links.

A relative `container_path` becomes a symbolic link in the working directory. A process sees the
host's own paths, so that an absolute one works if it is the host's; the log says so otherwise.
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
    """A bind mount that the configuration asks for is impossible."""


@dataclass(frozen=True, slots=True)
class BindMount:
    """An entry of the configuration's `bind_mounts`; `container_path` is normalised."""

    host_path: str
    container_path: str
    read_only: bool = False
    propagation: str = "rprivate"

    @property
    def is_link(self) -> bool:
        """Whether the mount lies in the working directory."""
        return not posixpath.isabs(self.container_path)


def bind_mounts(config: Mapping[str, Any]) -> list[BindMount]:
    """The configuration's bind mounts. Raises MountImpossible for an entry that is none."""
    mounts = []
    for entry in config.get("bind_mounts") or ():
        host, container = _parse_path(entry, "host_path"), _parse_path(entry, "container_path")
        read_only = bool(entry.get("read_only"))
        propagation = str(entry.get("propagation") or "rprivate")
        normal = posixpath.normpath(container)
        mounts.append(BindMount(posixpath.normpath(host), normal, read_only, propagation))
    return mounts


def make_links(mounts: list[BindMount], folder: Path) -> None:
    """Make links for relative paths in `folder`, the working directory with the model code.

    Raises MountImpossible for a host path that does not exist, and for a link that would leave the
    folder or stand where something is already.
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
    """Whether there is something at a path of a configuration, which may be none of any machine."""
    try:
        return path.exists()
    except OSError:
        # Of a name that is too long, or below a folder that nobody may look into.
        return False
