"""The files of model code, read from untrusted archives.

Archives in a bucket were uploaded directly and are unchecked. A single pass reads an archive within
the limits of `archive_limits.py`. Later questions about the archive are answered from the cache
while the cache keeps the result.
"""

import re
import sys
from codecs import getincrementaldecoder
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256 as new_sha256
from threading import Lock

from control_plane.bounded_cache import BoundedCache
from control_plane.objects.store import ObjectNotFound, ObjectStore, model_code_key
from detcloud.shared.archive_limits import FILE_BYTES_MAX, ArchiveInvalid
from detcloud.shared.archive_reader import read_source_entries

TEXT_BYTES_MAX = 1024 * 1024
"""The maximum number of bytes of a file that are read as text."""

TEXTS_KEPT_BYTES_MAX = 8 * 1024 * 1024
"""The bytes of memory for the cached texts of an archive. An archive with more text is read again
for a text that is not cached.
"""

FILES_SHOWN_MAX = 10_000
"""The maximum number of files and folders of an archive that is shown, which is a tenth of the
maximum for submissions. A pass over the archive then takes a second instead of ten, and the files
fit into the cache.
"""

KEPT_BYTES_MAX = 64 * 1024 * 1024
"""The bytes of memory for the cache of all archives. The largest archive fits: its texts, and ten
thousand names of 1 KiB in UTF-8, which may take 4 KiB of memory each.
"""

# The memory of the objects that hold a path and a text.
_FILE_BYTES = 400
# Control characters, for which a gateway sends seven characters each. A text without these fits
# into a response of 6 MB.
_CONTROL_CHARACTER = re.compile(r"[\x00-\x08\x0b\x0e-\x1f]")
_decoder = getincrementaldecoder("utf-8")


@dataclass(frozen=True, slots=True)
class CodeFile:
    """A file of an archive."""

    path: str
    size: int
    """The size in bytes."""
    is_executable: bool
    is_text: bool
    """Whether the beginning of the file is text (see `parse_text`)."""
    sha256: str
    """The hexadecimal SHA-256 of the content."""


@dataclass(frozen=True, slots=True)
class _Contents:
    """The result of a pass over an archive."""

    files: tuple[CodeFile, ...]
    """The files, sorted by folder and name."""
    texts: dict[str, str]
    """The beginnings of some text files, by path."""
    refusal: str = ""
    """The reason why the archive was refused, or ""."""

    def find_file(self, path: str) -> CodeFile | None:
        """Return the file at this path. Return None if the archive has no such file."""
        return next((file for file in self.files if file.path == path), None)

    def has_answer(self, path: str | None) -> bool:
        """Return whether a question can be answered without reading the archive again.

        Args:
            path: the file whose text is needed. None if only the list of files is needed.
        """
        if path is None or path in self.texts:
            return True
        file = self.find_file(path)
        return file is None or not file.is_text

    def weigh(self) -> int:
        """Return the memory of the texts and files in bytes."""
        texts = sum(map(sys.getsizeof, self.texts.values()))
        return texts + sum(_FILE_BYTES + sys.getsizeof(file.path) for file in self.files)


class CodeArchives:
    """The archives of model code in an object store, with a cache. Threads may share an instance.

    Args:
        bytes_max: the memory of the cache in bytes.
        texts_bytes_max: the memory of the cached texts of an archive in bytes.
        files_max: the maximum number of files and folders of an archive.
    """

    def __init__(
        self,
        objects: ObjectStore,
        bytes_max: int = KEPT_BYTES_MAX,
        *,
        texts_bytes_max: int = TEXTS_KEPT_BYTES_MAX,
        files_max: int = FILES_SHOWN_MAX,
    ) -> None:
        self._objects = objects
        self._texts_bytes_max = texts_bytes_max
        self._files_max = files_max
        self._lock = Lock()
        self._kept: BoundedCache[str, _Contents] = BoundedCache(bytes_max)

    def has_kept(self, digest: str, path: str | None = None) -> bool:
        """Return whether the cache can answer a question about an archive, or about the file at
        `path`.

        Otherwise, the question needs a pass over the archive, which may take seconds.
        """
        with self._lock:
            contents = self._kept.find(digest)
        return contents is not None and contents.has_answer(path)

    def list_files(self, digest: str) -> tuple[CodeFile, ...]:
        """Return the files of an archive, sorted so that the files of a folder are adjacent.

        Raises:
            ObjectNotFound: the archive does not exist.
            ArchiveInvalid: the archive breaks a rule, or differs from the submitted archive.
        """
        return self._load(digest, None).files

    def read_text(self, digest: str, path: str) -> tuple[CodeFile, str] | None:
        """Return a file of an archive and the beginning of its text, up to TEXT_BYTES_MAX bytes.

        The text is "" for a file that is not text. Return None if the archive has no such file.

        Raises:
            ObjectNotFound: the archive does not exist.
            ArchiveInvalid: the archive breaks a rule, or differs from the submitted archive.
        """
        contents = self._load(digest, path)
        file = contents.find_file(path)
        return None if file is None else (file, contents.texts.get(path, ""))

    def _load(self, digest: str, path: str | None) -> _Contents:
        """Return the cached contents of an archive, or read and cache the contents.

        Raises ObjectNotFound and ArchiveInvalid. The refusal of an archive is cached as well.
        """
        with self._lock:
            contents = self._kept.find(digest)
        if contents is None or not contents.has_answer(path):
            try:
                contents = self._read_contents(digest, path)
            except ArchiveInvalid as error:
                # The archive will break the rule at the next attempt too, so the refusal is cached.
                contents = _Contents((), {}, str(error))
            with self._lock:
                self._kept.keep(digest, contents, contents.weigh())
        if contents.refusal:
            raise ArchiveInvalid("", contents.refusal)
        return contents

    def _read_contents(self, digest: str, path: str | None) -> _Contents:
        """Read an archive to the end, with texts up to `texts_bytes_max` and the text of `path`.

        Raises:
            ObjectNotFound: the archive does not exist.
            ArchiveInvalid: the archive breaks a rule, or has another digest.
        """
        key = model_code_key(digest)
        size = self._objects.size(key)
        if size is None:
            raise ObjectNotFound(key)
        source = _Source(self._objects.get(key, length=size))
        files: list[CodeFile] = []
        texts: dict[str, str] = {}
        texts_bytes = 0
        for entry, blocks in read_source_entries(source, size, FILE_BYTES_MAX, self._files_max):
            if entry.is_directory:
                continue
            file, text = _read_file(entry.name, entry.executable, blocks)
            files.append(file)
            if text is None:
                continue
            text_bytes = sys.getsizeof(text)
            if entry.name == path or texts_bytes + text_bytes <= self._texts_bytes_max:
                texts[entry.name] = text
                texts_bytes += text_bytes
        while source.read(0):
            pass
        if source.digest.hexdigest() != digest:
            raise ArchiveInvalid("", "its SHA-256 differs from the recorded one: it was modified")
        return _Contents(tuple(sorted(files, key=lambda file: file.path.split("/"))), texts)


class _Source:
    """The compressed bytes of an archive, with the digest of all bytes read so far."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self.digest = new_sha256()

    def read(self, size: int, /) -> bytes:
        """Return a block of any size, ignoring `size`. Return b"" at the end."""
        for block in self._blocks:
            if block:
                self.digest.update(block)
                return block
        return b""


def _read_file(
    path: str, is_executable: bool, blocks: Iterator[bytes]
) -> tuple[CodeFile, str | None]:
    """Read a file to the end. Return the file and the beginning of the text, None if it is not
    text.
    """
    digest = new_sha256()
    start = bytearray()
    size = 0
    for block in blocks:
        digest.update(block)
        size += len(block)
        start += block[: TEXT_BYTES_MAX - len(start)]
    text = parse_text(bytes(start), is_whole=size == len(start))
    return CodeFile(path, size, is_executable, text is not None, digest.hexdigest()), text


def parse_text(start: bytes, *, is_whole: bool) -> str | None:
    """Return the text at the beginning of a file.

    Return None if the bytes are not UTF-8, or contain control characters other than tabs, line ends
    and form feeds.

    Args:
        is_whole: whether `start` is the whole file. Otherwise, an incomplete character at the end
            is left out.
    """
    try:
        text = _decoder().decode(start, final=is_whole)
    except UnicodeDecodeError:
        return None
    return None if _CONTROL_CHARACTER.search(text) else text
