"""Model code as files: read in one pass, cached within bounds, refused if invalid."""

import gzip
import hashlib
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from control_plane.objects.code_archives import TEXT_BYTES_MAX, CodeArchives, parse_text
from control_plane.objects.directory import DirectoryObjectStore
from control_plane.objects.signing import HmacUrlSigner
from control_plane.objects.store import ObjectKey, ObjectNotFound, model_code_key
from detcloud.shared.archive import pack
from detcloud.shared.archive_limits import ArchiveInvalid
from tests.unit.api.cluster import archive, archive_of

MIB = 1024 * 1024


class CountingStore(DirectoryObjectStore):
    """A store that counts reads of objects."""

    reads = 0

    def get(self, key: ObjectKey, *, start: int = 0, length: int | None = None) -> Iterator[bytes]:
        self.reads += 1
        return super().get(key, start=start, length=length)

    def add(self, content: bytes) -> str:
        """Store an archive and return the digest."""
        digest = hashlib.sha256(content).hexdigest()
        self.put(model_code_key(digest), content)
        return digest


@pytest.fixture
def store(tmp_path: Path) -> CountingStore:
    return CountingStore(tmp_path / "objects", HmacUrlSigner(b"s" * 32))


@pytest.fixture
def add_files(store: CountingStore, tmp_path: Path) -> Callable[[Mapping[str, bytes]], str]:
    """Return a function that packs files like a client, stores the archive, returns the digest."""

    def add(files: Mapping[str, bytes]) -> str:
        for name, content in files.items():
            path = tmp_path / "model" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            path.chmod(0o755 if name.endswith(".sh") else 0o644)
        with pack(tmp_path / "model") as packed:
            return store.add(packed.path.read_bytes())

    return add


AddFiles = Callable[[Mapping[str, bytes]], str]


def link(name: str, target: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, target
    return info


def test_code_files_are_sorted_by_folder(store: CountingStore, add_files: AddFiles) -> None:
    files = {"net/a.py": b"1", "net-b.py": b"22", "run.sh": b"#!", "net/sub/c.bin": b"\0", "e": b""}
    listed = CodeArchives(store).list_files(add_files(files))
    assert [file.path for file in listed] == [
        "e",
        "net/a.py",
        "net/sub/c.bin",
        "net-b.py",
        "run.sh",
    ]
    assert [file.size for file in listed] == [0, 1, 1, 2, 2]
    assert [file.path for file in listed if file.is_executable] == ["run.sh"]
    assert [file.path for file in listed if not file.is_text] == ["net/sub/c.bin"]
    assert listed[1].sha256 == hashlib.sha256(b"1").hexdigest()


def test_list_and_texts_are_read_in_one_pass(store: CountingStore, add_files: AddFiles) -> None:
    digest = add_files({"a.py": "ä = 1\n".encode(), "b": b"\xff", "none": b""})
    archives = CodeArchives(store)
    assert not archives.has_kept(digest)
    archives.list_files(digest)
    texts = {path: archives.read_text(digest, path) for path in ("a.py", "b", "none", "c")}
    assert {path: found and found[1] for path, found in texts.items()} == {
        "a.py": "ä = 1\n",
        "b": "",
        "none": "",
        "c": None,
    }
    assert archives.has_kept(digest, "a.py")
    assert store.reads == 1


def test_long_text_is_cut_between_characters(store: CountingStore, add_files: AddFiles) -> None:
    # The bound is in the middle of the last "ä", which has two bytes.
    content = b"x" * (TEXT_BYTES_MAX - 1) + "äö".encode()
    digest = add_files({"long.txt": content})
    text = CodeArchives(store).read_text(digest, "long.txt")
    assert text is not None
    assert (text[0].size, text[0].is_text) == (TEXT_BYTES_MAX + 3, True)
    assert text[1] == "x" * (TEXT_BYTES_MAX - 1)


def test_texts_beyond_the_cache_limit_are_read_again(
    store: CountingStore, add_files: AddFiles
) -> None:
    digest = add_files({name: name.encode() * 1_000 for name in "abc"})
    archives = CodeArchives(store, texts_bytes_max=2_000)
    archives.list_files(digest)
    # A text of 1,000 characters takes some more bytes in memory, so that a single text is cached.
    assert [archives.has_kept(digest, name) for name in "abc"] == [True, False, False]
    for name in "abccd":
        text = archives.read_text(digest, name)
        assert (text and text[1]) == (None if name == "d" else name * 1_000)
    # The reads are for the list, for b and for c.
    assert store.reads == 3


def test_cached_archives_are_bounded_in_bytes(store: CountingStore, add_files: AddFiles) -> None:
    # 1,000 characters, the objects around the text and the path: an archive fits, two do not, an
    # archive of three texts is never cached.
    archives = CodeArchives(store, bytes_max=2_500)
    digests = [store.add(archive(name, b"x" * 1_000)) for name in "ab"]
    for digest in digests:
        archives.list_files(digest)
    assert [archives.has_kept(digest) for digest in digests] == [False, True]
    large = add_files({name: b"x" * 1_000 for name in "abc"})
    for _ in range(2):
        assert len(archives.list_files(large)) == 3
    assert not archives.has_kept(large)
    assert store.reads == 4


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (archive_of((link("a", "/etc/passwd"), b"")), "'a': links are not accepted"),
        (archive_of(("../a", b"1")), "'../a': the name must not hold '.', '..'"),
        (archive_of(("a", b"1"), ("A", b"2")), "clashes"),
        (archive_of(("zeros", bytes(17 * MIB))), "expands more than 200 times"),
        (gzip.compress(bytes(17 * MIB)), "a header or the padding is longer"),
        (archive()[:-9], "not a complete .tar.gz"),
        (b"print(1)\n", "not a complete .tar.gz"),
    ],
    ids=["link", "dots", "clash", "bomb", "zeros", "cut", "text"],
)
def test_invalid_archive_is_refused_and_read_once(
    store: CountingStore, content: bytes, reason: str
) -> None:
    digest = store.add(content)
    archives = CodeArchives(store)
    with pytest.raises(ArchiveInvalid, match=reason):
        archives.list_files(digest)
    with pytest.raises(ArchiveInvalid, match=reason):
        archives.read_text(digest, "a")
    assert store.reads == 1


def test_largest_shown_archive_is_cached_and_larger_archives_are_refused(
    store: CountingStore,
) -> None:
    # A name has 1,024 bytes: 5 folders with slashes, and a character of four bytes, so that
    # each character of the name takes four bytes in memory.
    folder = "/".join(letter * 200 for letter in "abcde")
    names = [f"{folder}/{n:02}{'x' * 13}\N{ROCKET}" for n in range(16)]
    assert {len(name.encode()) for name in names} == {1_024}
    # 5 folders and 15 files count as 20.
    archives = CodeArchives(store, bytes_max=15 * (400 + 4 * 1_100 + 100), files_max=20)
    digest = store.add(archive_of(*((name, b"1") for name in names[:15])))
    assert len(archives.list_files(digest)) == 15
    assert archives.has_kept(digest)
    digest = store.add(archive_of(*((name, b"1") for name in names)))
    with pytest.raises(ArchiveInvalid, match="more than 20 files and folders"):
        archives.list_files(digest)


def test_modified_archive_is_refused(store: CountingStore) -> None:
    digest = store.add(archive("a", b"mine"))
    store.put(model_code_key(digest), archive("a", b"theirs"))
    with pytest.raises(ArchiveInvalid, match="it was modified"):
        CodeArchives(store).list_files(digest)


def test_missing_archive_is_found_after_the_upload(store: CountingStore) -> None:
    content = archive("a", b"1")
    digest = hashlib.sha256(content).hexdigest()
    archives = CodeArchives(store)
    with pytest.raises(ObjectNotFound):
        archives.list_files(digest)
    store.add(content)
    assert [file.path for file in archives.list_files(digest)] == ["a"]


@pytest.mark.parametrize(
    ("start", "is_whole", "text"),
    [
        (b"a\tb\r\n\x0c", True, "a\tb\r\n\x0c"),
        (b"", True, ""),
        ("\N{ROCKET}".encode(), True, "\N{ROCKET}"),
        # The first two of the rocket's four bytes.
        ("a\N{ROCKET}".encode()[:3], False, "a"),
        ("a\N{ROCKET}".encode()[:3], True, None),
        (b"a\0", True, None),
        (b"\x1b[31mred", True, None),
        (b"caf\xe9", True, None),
        # Half of a surrogate pair of UTF-16, which is no character.
        (b"\xed\xa0\x80", True, None),
    ],
)
def test_text_is_unicode_without_control_characters(
    start: bytes, is_whole: bool, text: str | None
) -> None:
    assert parse_text(start, is_whole=is_whole) == text
