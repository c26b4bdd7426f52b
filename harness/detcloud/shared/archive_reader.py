"""A reader of archives of model code that trusts nothing in an archive.

The standard library's tar reader believes every header. Three checks therefore limit the tar
reader: on the compressed pieces, on the bytes that the tar reader gets, and on each header before
the tar reader reads the announced content.
"""

import io
import stat
import tarfile
import zlib
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from detcloud.shared.archive_limits import (
    EXTENSION_BYTES_MAX,
    EXTENSIONS_BYTES_MAX,
    EXTENSIONS_MAX,
    GLOBAL_HEADER_BYTES_MAX,
    GLOBAL_HEADERS_MAX,
    GZIP_MEMBERS_MAX,
    ArchiveInvalid,
    check_ratio,
    display_mebibytes,
)
from detcloud.shared.archive_names import NameChecker

_BLOCK_BYTES = 64 * 1024
_TAR_BLOCK_BYTES = 512
# The limit on an entry's header with all extensions, each in whole blocks after another header.
_HEADER_BYTES_MAX = EXTENSIONS_MAX * (EXTENSION_BYTES_MAX + _TAR_BLOCK_BYTES) + _TAR_BLOCK_BYTES
_EXTENSIONS = frozenset(
    {
        tarfile.XHDTYPE,
        tarfile.XGLTYPE,
        tarfile.SOLARIS_XHDTYPE,
        tarfile.GNUTYPE_LONGNAME,
        tarfile.GNUTYPE_LONGLINK,
    }
)


class ByteSource(Protocol):
    """A source of the compressed bytes of an archive. `read` returns b"" only at the end."""

    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True)
class ArchiveEntry:
    """A file or a folder of an archive."""

    name: str
    is_directory: bool
    executable: bool


def read_entries(
    archive: Path, bytes_max: int, files_max: int
) -> Iterator[tuple[ArchiveEntry, Iterator[bytes]]]:
    """Yield every entry with an iterator of the entry's content in blocks.

    Entries come in the order of the archive. Directories have no blocks. The content is only valid
    until the next entry. Content that the caller does not read is read and checked as well. The
    file is read during the iteration, so errors may follow valid entries. The archive is valid
    only if the iteration ends without an error.

    Args:
        archive: the `.tar.gz` file.
        bytes_max: the limit on the bytes of all files.
        files_max: the limit on files and folders, including folders that only names imply.

    Raises:
        ArchiveInvalid: the archive breaks a rule or exceeds a limit. Names the entry if possible.
        OSError: the file cannot be read.
    """
    with archive.open("rb") as file:
        yield from read_source_entries(file, archive.stat().st_size, bytes_max, files_max)


def read_source_entries(
    source: ByteSource, archive_bytes: int, bytes_max: int, files_max: int
) -> Iterator[tuple[ArchiveEntry, Iterator[bytes]]]:
    """Yield every entry of an archive from a source of bytes, as `read_entries` does.

    The source is read to the end, a block at a time during the iteration, and is not closed.
    `archive_bytes` is the number of compressed bytes, for the limit on the compression ratio.
    Raise ArchiveInvalid as `read_entries` does. An OSError of the source is passed on. A
    ValueError, IndexError or EOFError of the source becomes ArchiveInvalid.
    """
    with _refuse_damage():
        metered = _MeteredStream(_GzipContent(source), archive_bytes)
        yield from _read_metered_entries(metered, bytes_max, files_max)


@contextmanager
def _refuse_damage() -> Iterator[None]:
    try:
        yield
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise ArchiveInvalid("", f"it is not a complete .tar.gz file: {error}") from None
    except (ValueError, IndexError, OverflowError, RecursionError) as error:
        raise ArchiveInvalid("", f"a header is invalid: {error}") from None


def _read_metered_entries(
    metered: "_MeteredStream", bytes_max: int, files_max: int
) -> Iterator[tuple[ArchiveEntry, Iterator[bytes]]]:
    checker = NameChecker(files_max)
    extensions = _ExtensionChecker()
    count = file_bytes = 0
    metered.allow_bytes(_HEADER_BYTES_MAX)
    header = _header_class(extensions)
    with tarfile.open(fileobj=metered, mode="r|", bufsize=_BLOCK_BYTES, tarinfo=header) as tar:
        while (info := tar.next()) is not None:
            entry = _parse_entry(info)
            extensions.end_entry()
            count += 1
            file_bytes += info.size
            if count > files_max:
                raise ArchiveInvalid(info.name, f"there are more than {files_max} entries")
            if file_bytes > bytes_max:
                limit = display_mebibytes(bytes_max)
                raise ArchiveInvalid(info.name, f"the files hold more than {limit} up to here")
            checker.add(entry.name, entry.is_directory)
            metered.allow_bytes(info.size)
            content = _read_content(tar, info)
            yield entry, content
            for _ in content:
                pass
            # The tar reader would keep all entries in memory.
            vars(tar)["members"].clear()
            metered.allow_bytes(_HEADER_BYTES_MAX)
        metered.check_end_at(int(vars(tar)["offset"]))


def _parse_entry(info: tarfile.TarInfo) -> ArchiveEntry:
    is_directory = info.type == tarfile.DIRTYPE
    if info.issym() or info.islnk():
        raise ArchiveInvalid(info.name, "links are not accepted; store what it points to")
    if not is_directory and info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
        raise ArchiveInvalid(info.name, "only regular files and directories are accepted")
    if info.issparse():
        raise ArchiveInvalid(info.name, "sparse files are not accepted")
    if info.mode & 0o7000:
        raise ArchiveInvalid(info.name, f"mode {info.mode:o} has a setuid, setgid or sticky bit")
    if info.size < 0 or (is_directory and info.size):
        raise ArchiveInvalid(info.name, f"its size cannot be {info.size}")
    return ArchiveEntry(info.name, is_directory, bool(info.mode & stat.S_IXUSR))


def _read_content(tar: tarfile.TarFile, info: tarfile.TarInfo) -> Iterator[bytes]:
    reader = tar.extractfile(info)
    remaining = info.size if reader is not None else 0
    while reader is not None and remaining:
        with _refuse_damage():
            block = reader.read(min(_BLOCK_BYTES, remaining))
        if not block:
            raise ArchiveInvalid(info.name, "the archive ends inside this file")
        remaining -= len(block)
        yield block


class _GzipContent:
    """The content of a gzip-compressed file with at most GZIP_MEMBERS_MAX pieces.

    zlib checks the checksum and the size at the end of each piece. The standard library's reader
    has no limit on the pieces, and many small pieces would make reading slow.
    """

    def __init__(self, file: ByteSource) -> None:
        self._file = file
        self._input = b""
        self._members = 0
        self._member: Any = None

    def read(self, size: int) -> bytes:
        """Read `size` bytes of content, or fewer at the end. b"" after the end.

        Raise EOFError if the file ends within a piece, zlib.error if the file is damaged, and
        ArchiveInvalid if the file has too many pieces. Errors of the file are passed on.
        """
        blocks: list[bytes] = []
        while size > 0 and (block := self._read_some(size)):
            blocks.append(block)
            size -= len(block)
        return b"".join(blocks)

    def _read_some(self, size: int) -> bytes:
        while self._member is not None or self._begin_member():
            compressed = self._input or self._file.read(_BLOCK_BYTES)
            content: bytes = self._member.decompress(compressed, size)
            self._input = self._member.unconsumed_tail
            if self._member.eof:
                self._input = self._member.unused_data
                self._member = None
            elif not compressed and not content:
                raise EOFError("it ends in the middle of its content")
            if content:
                return content
        return b""

    def _begin_member(self) -> bool:
        """Begin the next piece, and return True. Return False at the end of the file.

        Zero bytes after a piece are skipped. Other bytes begin a piece, even if they are no gzip
        header. Raise ArchiveInvalid if the file has too many pieces.
        """
        if self._members:
            self._input = self._input.lstrip(b"\0")
        while not self._input:
            self._input = self._file.read(_BLOCK_BYTES)
            if not self._input:
                return False
            if self._members:
                self._input = self._input.lstrip(b"\0")
        self._members += 1
        if self._members > GZIP_MEMBERS_MAX:
            text = f"it was compressed in more than {GZIP_MEMBERS_MAX} pieces; compress it at once"
            raise ArchiveInvalid("", text)
        self._member = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        return True


class _MeteredStream(io.BufferedIOBase):
    """A decompressed stream that raises ArchiveInvalid beyond the allowed number of bytes.

    The tar reader believes the sizes in headers and reads long headers into memory. The stream
    limits both.
    """

    def __init__(self, stream: _GzipContent, archive_bytes: int) -> None:
        super().__init__()
        self._stream = stream
        self._archive_bytes = archive_bytes
        self._bytes_read = 0
        self._bytes_allowed = 0
        self._recent: deque[bytes] = deque(maxlen=2)

    def allow_bytes(self, size: int) -> None:
        # The tar reader reads whole blocks, and may be a block ahead.
        self._bytes_allowed = self._bytes_read + size + 2 * _BLOCK_BYTES

    def read(self, size: int | None = -1, /) -> bytes:
        data = self._stream.read(size or -1)
        self._bytes_read += len(data)
        if self._bytes_read > self._bytes_allowed:
            raise ArchiveInvalid("", "a header or the padding is longer than any real one")
        check_ratio(self._bytes_read, self._archive_bytes)
        self._recent.append(data)
        return data

    def check_end_at(self, offset: int) -> None:
        """Read to the end of the stream, where zlib verifies the checksum of the content.

        Raise ArchiveInvalid if any byte after the archive's end at `offset` is not zero, or if the
        padding exceeds the allowed bytes, and the errors of a damaged file as `_GzipContent.read`
        does. The tar reader would treat a damaged header as the end.
        """
        recent = b"".join(self._recent)
        rest = recent[len(recent) - (self._bytes_read - offset) :]
        while rest:
            if rest.count(0) != len(rest):
                text = "it has data after its end, or a damaged header"
                raise ArchiveInvalid("", text)
            rest = self.read(_BLOCK_BYTES)


class _ExtensionChecker:
    """A check of the number and the announced sizes of headers that extend entries."""

    def __init__(self) -> None:
        self._of_entry = 0
        self._globals = 0
        self._bytes = 0

    def check_header(self, kind: bytes, size: int) -> None:
        """Count a header before its content is read. Headers that extend no entry are ignored.

        `kind` is the tar type, `size` the announced number of bytes. Raise ArchiveInvalid if the
        header exceeds a limit on number or bytes, for this entry or for the archive.
        """
        if kind not in _EXTENSIONS:
            return
        is_global = kind == tarfile.XGLTYPE
        self._of_entry += 1
        self._globals += is_global
        self._bytes += max(size, 0)
        for number, limit, unit in (
            (self._of_entry, EXTENSIONS_MAX, "headers before one entry"),
            (self._globals, GLOBAL_HEADERS_MAX, "global headers"),
            (size * is_global, GLOBAL_HEADER_BYTES_MAX, "bytes in a global header"),
            (size, EXTENSION_BYTES_MAX, "bytes in a header"),
            (self._bytes, EXTENSIONS_BYTES_MAX, "bytes in its headers"),
        ):
            if number > limit:
                raise ArchiveInvalid("", f"it has more than {limit} {unit}")

    def end_entry(self) -> None:
        """Reset the count of headers for the next entry. The totals stay."""
        self._of_entry = 0


def _header_class(extensions: _ExtensionChecker) -> type[tarfile.TarInfo]:
    """Return a header class for the tar reader that checks headers before reading the content.

    The tar reader then raises ArchiveInvalid as `extensions.check_header` does.
    """

    class CheckedHeader(tarfile.TarInfo):
        def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo:
            extensions.check_header(self.type, self.size)
            follow_header: Any = vars(tarfile.TarInfo)["_proc_member"]
            header: tarfile.TarInfo = follow_header(self, tar)
            return header

    return CheckedHeader
