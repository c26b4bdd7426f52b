"""The packing of a layer in a separate process: `python -m detcloud.agent.layer_archives.pack`.

    ... pack CACHE LAYER ARCHIVE       prints {"size": BYTES, "sha256": HEX, "omitted": N}

A trial may change the layer during the packing. Folders and files are therefore opened without
following links, and only regular files, folders and links are packed. The exit code is 0, or 1 with
a message on the error output.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from detcloud.agent.layer_archives.records import (
    ARCHIVE_BYTES_MAX,
    BLOCK_BYTES,
    CONTENT_BYTES_MAX,
    DEPTH_MAX,
    END,
    ENTRIES_MAX,
    LINE_BYTES_MAX,
    MAGIC,
    MODE_BITS,
    LayerRefused,
    stays_inside,
)

GZIP_LEVEL = 1
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Opening a pipe that a trial put in the place of a file must not block.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def main(arguments: list[str]) -> int:
    """Pack a layer with the lowest process priority, and print the result as JSON.

    `arguments` are the cache folder, the layer's folder name and the path of the new archive.
    Return 0. Return 1 after an error, or if the agent ends meanwhile, with a message on the
    standard error.
    """
    cache, layer, archive = arguments
    parent = os.getppid()
    os.nice(19)

    def check_parent() -> None:
        if os.getppid() != parent:
            raise LayerRefused("the agent has ended")

    try:
        packed = pack_layer(Path(cache), layer, Path(archive), check_parent)
    except (LayerRefused, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(packed))
    return 0


def pack_layer(
    cache: Path, layer: str, archive: Path, check: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """Pack the folder `layer` of `cache` into the new file `archive`.

    After an exception during the packing, no new archive is left. A file that existed before is
    kept.

    Args:
        check: called before each entry. An exception ends the packing.

    Returns:
        `size` and `sha256` of the archive, and `omitted`: the number of skipped entries. Links out
        of the layer and special files are skipped.

    Raises:
        LayerRefused: a limit is exceeded, or a file was changed during the packing.
        OSError: the layer is a link or cannot be read, or the archive exists or cannot be written.
    """
    top = _open_layer(cache, layer)
    try:
        with archive.open("xb") as file:
            try:
                return _write_archive(top, file, check)
            except BaseException:
                archive.unlink(missing_ok=True)
                raise
    finally:
        os.close(top)


def _write_archive(top: int, file: IO[bytes], check: Callable[[], None]) -> dict[str, Any]:
    """Write a whole archive of the open folder `top`, and return the result of `pack_layer`.

    Raises like `write_records`.
    """
    output = _CompressedFile(file)
    stream = io.BufferedWriter(output, BLOCK_BYTES)
    omitted = write_records(top, stream, check)
    stream.flush()
    output.finish()
    file.flush()
    return {"size": output.size, "sha256": output.digest.hexdigest(), "omitted": omitted}


def write_records(top: int, stream: IO[bytes], check: Callable[[], None]) -> int:
    """Write a whole archive, uncompressed, of the open folder `top`.

    Return the number of skipped entries: links out of the layer and special files. `check` is
    called before each entry, and its exceptions end the writing. Raise LayerRefused if a limit is
    exceeded or a file was changed meanwhile, OSError if an entry cannot be read.
    """
    content_bytes = omitted = 0
    stream.write(MAGIC)
    for entries, (name, folder, status) in enumerate(walk(top, ""), 1):
        check()
        base, mode = os.path.basename(name), status.st_mode  # noqa: PTH119
        if stat.S_ISDIR(mode):
            _write_line(stream, "folder", name, mode & MODE_BITS)
        elif stat.S_ISREG(mode):
            content_bytes += _write_file(stream, name, base, folder)
        elif stat.S_ISLNK(mode) and stays_inside(name, target := os.readlink(base, dir_fd=folder)):
            _write_line(stream, "link", name, target)
        else:
            omitted += 1
        if entries > ENTRIES_MAX:
            raise LayerRefused(f"the packages have more than {ENTRIES_MAX} files")
        if content_bytes > CONTENT_BYTES_MAX:
            raise LayerRefused(f"the packages have more than {CONTENT_BYTES_MAX >> 30} GiB")
    stream.write(END)
    return omitted


def walk(top: int, prefix: str, depth: int = 1) -> Iterator[tuple[str, int, os.stat_result]]:
    """Yield the path, open parent folder and status of each entry below an open folder.

    A folder comes directly before its entries, which are sorted by name. `prefix` is put in front
    of all paths. The yielded descriptor is only valid until the next step. `depth` is the depth of
    the entries in `top`. Raise LayerRefused if folders are nested more than DEPTH_MAX deep. Raise
    OSError for an unreadable folder.
    """
    if depth > DEPTH_MAX:
        raise LayerRefused(f"folders are nested more than {DEPTH_MAX} deep")
    with os.scandir(top) as found:
        names = sorted(entry.name for entry in found)
    for name in names:
        status = os.stat(name, dir_fd=top, follow_symlinks=False)
        yield f"{prefix}{name}", top, status
        if stat.S_ISDIR(status.st_mode):
            folder = os.open(name, _FOLDER, dir_fd=top)
            try:
                yield from walk(folder, f"{prefix}{name}/", depth + 1)
            finally:
                os.close(folder)


def _open_layer(cache: Path, layer: str) -> int:
    """Open a layer's folder, and return the descriptor.

    Raise OSError if the cache or the layer is a link or no folder.
    """
    around = os.open(cache, _FOLDER)
    try:
        return os.open(layer, _FOLDER, dir_fd=around)
    finally:
        os.close(around)


def _write_file(stream: IO[bytes], name: str, base: str, folder: int) -> int:
    """Write the entry and the content of a file, and return the number of content bytes.

    `base` is the file's name in the open folder. Raise LayerRefused if the file was replaced by
    another kind of entry or became shorter.
    """
    with os.fdopen(os.open(base, _FILE, dir_fd=folder), "rb", buffering=0) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise LayerRefused(f"{name!r} was replaced during the packing")
        mode, mtime = status.st_mode & MODE_BITS, max(0, int(status.st_mtime))
        _write_line(stream, "file", name, mode, mtime, status.st_size)
        left = status.st_size
        while left:
            block = file.read(min(left, BLOCK_BYTES))
            if not block:
                raise LayerRefused(f"{name!r} became shorter during the packing")
            stream.write(block)
            left -= len(block)
    return status.st_size


def _write_line(stream: IO[bytes], *fields: object) -> None:
    line = json.dumps(fields, separators=(",", ":")).encode() + b"\n"
    if len(line) > LINE_BYTES_MAX:
        raise LayerRefused("a name is too long")
    stream.write(line)


class _CompressedFile(io.RawIOBase):
    """A writer that compresses into `file`, and records the compressed size and SHA-256.

    Writing raises LayerRefused above ARCHIVE_BYTES_MAX compressed bytes.
    """

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__()
        self._file = file
        self._deflater = zlib.compressobj(GZIP_LEVEL, wbits=zlib.MAX_WBITS | 16)
        self.size = 0
        self.digest = hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, block: Any, /) -> int:
        self._write_packed(self._deflater.compress(block))
        return len(block)

    def finish(self) -> None:
        """Write the end of the compressed stream to the file, which stays open."""
        self._write_packed(self._deflater.flush())

    def _write_packed(self, packed: bytes) -> None:
        self.size += len(packed)
        if self.size > ARCHIVE_BYTES_MAX:
            raise LayerRefused(f"the archive has more than {ARCHIVE_BYTES_MAX >> 30} GiB")
        self.digest.update(packed)
        self._file.write(packed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
