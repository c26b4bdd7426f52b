"""The unpacking of layer archives with untrusted content."""

from __future__ import annotations

import io
import json
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from detcloud.agent.layer_archives.records import (
    BLOCK_BYTES,
    CONTENT_BYTES_MAX,
    END,
    ENTRIES_MAX,
    LINE_BYTES_MAX,
    MAGIC,
    MODE_BITS,
    MTIME_MAX,
    LayerRefused,
    check_name,
    stays_inside,
)

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def unpack_layer(
    archive: Path,
    folder: Path,
    owner: tuple[int, int] | None = None,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Unpack an archive into the new folder `folder`, in a parent that no trial can access.

    Links are created after all files, so that no file is written through a link. After an
    exception, the caller must delete the folder.

    Args:
        owner: the user and group of all created entries. None for the agent's user.
        check: called before each entry and block. An exception ends the unpacking.

    Raises:
        LayerRefused: the archive is damaged, exceeds a limit or contains an invalid entry, such as
            a link out of the folder.
        OSError: the folder exists or cannot be written.
    """
    folder.mkdir(mode=0o700)
    try:
        with archive.open("rb", buffering=0) as file:
            stream = io.BufferedReader(_InflatingReader(file), BLOCK_BYTES)
            links = _write_entries(stream, folder, owner, check)
    except (zlib.error, RecursionError, ValueError) as error:
        raise LayerRefused(f"the archive is damaged: {error}") from None
    _make_links(folder, links, owner)
    if owner is not None:
        os.chown(folder, *owner)


def _write_entries(
    stream: IO[bytes],
    folder: Path,
    owner: tuple[int, int] | None,
    check: Callable[[], None],
) -> list[tuple[str, str]]:
    """Write the folders and files of an archive, and return the name and target of each link.

    `owner` is the user and group of all entries, None for the agent's user. `check` is called
    before each entry and block; an exception ends the unpacking. Raise LayerRefused if an entry is
    invalid or the archive exceeds a limit, ValueError if a line is no JSON, OSError if a file
    cannot be written.
    """
    links: list[tuple[str, str]] = []
    content_bytes = entries = 0
    if stream.read(len(MAGIC)) != MAGIC:
        raise LayerRefused("the archive has another format")
    while (line := stream.readline(LINE_BYTES_MAX + 1)) != END:
        check()
        entries += 1
        if entries > ENTRIES_MAX:
            raise LayerRefused(f"the archive has more than {ENTRIES_MAX} entries")
        match _parse_line(line):
            case ["folder", name, int(mode)]:
                path = folder / check_name(name)
                path.mkdir(mode=0o700)
                _finish(path, mode | 0o700, owner)
            case ["file", name, int(mode), int(mtime), int(size)] if size >= 0:
                content_bytes += size
                if content_bytes > CONTENT_BYTES_MAX:
                    raise LayerRefused(f"the files have more than {CONTENT_BYTES_MAX >> 30} GiB")
                path = folder / check_name(name)
                _write_file(stream, path, size, check)
                seconds = min(max(mtime, 0), MTIME_MAX)
                os.utime(path, (seconds, seconds))
                _finish(path, mode | 0o600, owner)
            case ["link", name, str(target)]:
                if not stays_inside(check_name(name), target):
                    raise LayerRefused(f"the link {name[:200]!r} leads out of the layer")
                links.append((name, target))
            case _:
                raise LayerRefused("an entry has an unknown form")
    return links


def _parse_line(line: bytes) -> Any:
    if not line.endswith(b"\n") or len(line) > LINE_BYTES_MAX:
        raise LayerRefused("the archive was cut, or a line is too long")
    return json.loads(line)


def _write_file(stream: IO[bytes], path: Path, size: int, check: Callable[[], None]) -> None:
    with os.fdopen(os.open(path, _CREATE, 0o600), "wb", buffering=0) as file:
        left = size
        while left:
            check()
            block = stream.read(min(left, BLOCK_BYTES))
            if not block:
                raise LayerRefused("the archive was cut")
            file.write(block)
            left -= len(block)


def _finish(path: Path, mode: int, owner: tuple[int, int] | None) -> None:
    path.chmod(mode & MODE_BITS)
    if owner is not None:
        os.chown(path, *owner, follow_symlinks=False)


def _make_links(folder: Path, links: list[tuple[str, str]], owner: tuple[int, int] | None) -> None:
    for name, target in links:
        path = folder / name
        if not path.parent.resolve().is_relative_to(folder.resolve()):
            raise LayerRefused(f"{name[:200]!r} lies behind a link")
        path.symlink_to(target)
        if owner is not None:
            os.chown(path, *owner, follow_symlinks=False)
    # A chain of links may lead out of the folder even if every single link stays inside.
    top = os.path.realpath(folder)
    for name, _ in links:
        found = os.path.realpath(folder / name)
        if found != top and not found.startswith(f"{top}/"):
            raise LayerRefused(f"the link {name[:200]!r} leads out of the layer")


class _InflatingReader(io.RawIOBase):
    """A reader of a gzip-compressed file's content. Raises zlib.error for a cut or damaged file."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__()
        self._file = file
        self._inflater = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        while not self._inflater.eof:
            packed = self._inflater.unconsumed_tail or self._file.read(BLOCK_BYTES)
            block = self._inflater.decompress(packed, len(buffer))
            if block:
                buffer[: len(block)] = block
                return len(block)
            if not packed:
                raise zlib.error("the archive was cut")
        return 0
