"""Files of model code, read from untrusted archives.

In a bucket nobody has looked at an archive before: it is what its uploader sent. One pass reads it,
within the limits of `archive_limits.py`, and is good for every later question about it as long as
its files and texts are kept.
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
"""The bytes of a file that are read as its text."""

TEXTS_KEPT_BYTES_MAX = 8 * 1024 * 1024
"""The bytes in memory of the texts of one archive; what has more is read again for its others."""

FILES_SHOWN_MAX = 10_000
"""The files and folders of an archive that is shown: a tenth of those that one may have, so that a
pass takes a second where it took ten, and its files fit into what is kept.
"""

KEPT_BYTES_MAX = 64 * 1024 * 1024
"""The bytes in memory that are kept of all archives. The largest one fits: ten thousand names of
1 KiB in UTF-8, which may be 4 KiB in memory, and its texts.
"""

# Of the objects around a path and a text.
_FILE_BYTES = 400
# What a gateway would make seven characters of: a text without them fits into an answer of 6 MB.
_CONTROL_CHARACTER = re.compile(r"[\x00-\x08\x0b\x0e-\x1f]")
_decoder = getincrementaldecoder("utf-8")


@dataclass(frozen=True, slots=True)
class CodeFile:
    """A file of an archive; `size` is in bytes."""

    path: str
    size: int
    is_executable: bool
    is_text: bool
    sha256: str


@dataclass(frozen=True, slots=True)
class _Contents:
    """The result of one pass over an archive: its files by path and the beginnings of some texts,
    or why it was refused.
    """

    files: tuple[CodeFile, ...]
    texts: dict[str, str]
    refusal: str = ""

    def find_file(self, path: str) -> CodeFile | None:
        return next((file for file in self.files if file.path == path), None)

    def has_answer(self, path: str | None) -> bool:
        """Whether nothing has to be read to tell of all files, or of the one at this path."""
        if path is None or path in self.texts:
            return True
        file = self.find_file(path)
        return file is None or not file.is_text

    def weigh(self) -> int:
        texts = sum(map(sys.getsizeof, self.texts.values()))
        return texts + sum(_FILE_BYTES + sys.getsizeof(file.path) for file in self.files)


class CodeArchives:
    """The archives of model code in a store, with a cache of the last ones. Safe to share between
    threads.
    """

    def __init__(self, objects: ObjectStore, bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._objects = objects
        self._lock = Lock()
        self._kept: BoundedCache[str, _Contents] = BoundedCache(bytes_max)

    def has_kept(self, digest: str, path: str | None = None) -> bool:
        """Whether a question about an archive, or a file of it, costs no pass, which may take
        seconds.
        """
        with self._lock:
            contents = self._kept.find(digest)
        return contents is not None and contents.has_answer(path)

    def list_files(self, digest: str) -> tuple[CodeFile, ...]:
        """The files of an archive, those of a folder beside each other.

        Raises:
            ObjectNotFound; ArchiveInvalid: it breaks a rule, or is not what was submitted.
        """
        return self._load(digest, None).files

    def read_text(self, digest: str, path: str) -> tuple[CodeFile, str] | None:
        """A file of an archive, and the beginning of its text, up to TEXT_BYTES_MAX, "" for one
        that is no text. None where there is no such file.

        Raises:
            ObjectNotFound; ArchiveInvalid: it breaks a rule, or is not what was submitted.
        """
        contents = self._load(digest, path)
        file = contents.find_file(path)
        return None if file is None else (file, contents.texts.get(path, ""))

    def _load(self, digest: str, path: str | None) -> _Contents:
        with self._lock:
            contents = self._kept.find(digest)
        if contents is None or not contents.has_answer(path):
            try:
                contents = _read_contents(self._objects, digest, path)
            except ArchiveInvalid as error:
                # It will break the same rule the next time.
                contents = _Contents((), {}, str(error))
            with self._lock:
                self._kept.keep(digest, contents, contents.weigh())
        if contents.refusal:
            raise ArchiveInvalid("", contents.refusal)
        return contents


class _Source:
    """The compressed bytes of an archive, with their digest up to here."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self.digest = new_sha256()

    def read(self, size: int, /) -> bytes:
        """Read a block of any size; b"" at the end."""
        for block in self._blocks:
            if block:
                self.digest.update(block)
                return block
        return b""


def _read_contents(objects: ObjectStore, digest: str, path: str | None) -> _Contents:
    """Read an archive to its end; texts up to TEXTS_KEPT_BYTES_MAX, and that of `path`.

    Raises:
        ObjectNotFound; ArchiveInvalid: it breaks a rule, or has another digest.
    """
    key = model_code_key(digest)
    size = objects.size(key)
    if size is None:
        raise ObjectNotFound(key)
    source = _Source(objects.get(key, length=size))
    files: list[CodeFile] = []
    texts: dict[str, str] = {}
    texts_bytes = 0
    for entry, blocks in read_source_entries(source, size, FILE_BYTES_MAX, FILES_SHOWN_MAX):
        if entry.is_directory:
            continue
        file, text = _read_file(entry.name, entry.executable, blocks)
        files.append(file)
        if text is None:
            continue
        text_bytes = sys.getsizeof(text)
        if entry.name == path or texts_bytes + text_bytes <= TEXTS_KEPT_BYTES_MAX:
            texts[entry.name] = text
            texts_bytes += text_bytes
    while source.read(0):
        pass
    if source.digest.hexdigest() != digest:
        raise ArchiveInvalid("", "its SHA-256 differs from the recorded one: it was modified")
    return _Contents(tuple(sorted(files, key=lambda file: file.path.split("/"))), texts)


def _read_file(
    path: str, is_executable: bool, blocks: Iterator[bytes]
) -> tuple[CodeFile, str | None]:
    """Read a file to its end; with it the beginning of its text, None if it is no text."""
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
    """The text that a file begins with; None if it is not UTF-8, or holds control characters other
    than tabs, ends of lines and form feeds. Unless it is the whole file, it may end within a
    character, which is left out.
    """
    try:
        text = _decoder().decode(start, final=is_whole)
    except UnicodeDecodeError:
        return None
    return None if _CONTROL_CHARACTER.search(text) else text
