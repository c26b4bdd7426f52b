"""Limits on small archives that are expensive to read."""

import gzip
import io
import tarfile
from pathlib import Path

import pytest

from detcloud.shared import archive_reader
from detcloud.shared.archive import inspect, pack
from detcloud.shared.archive_limits import ArchiveInvalid
from detcloud.shared.archive_names import NameChecker, fold_part

BLOCK = 512
END = bytes(2 * BLOCK)


def tar_file(name: str = "a") -> bytes:
    return tarfile.TarInfo(name).tobuf(tarfile.USTAR_FORMAT)


def pax_header(records: bytes, kind: bytes = tarfile.XHDTYPE) -> bytes:
    info = tarfile.TarInfo("pax")
    info.type, info.size = kind, len(records)
    return info.tobuf(tarfile.USTAR_FORMAT) + records + bytes(-len(records) % BLOCK)


def refusal(tmp_path: Path, compressed: bytes) -> str:
    path = tmp_path / "a.tar.gz"
    path.write_bytes(compressed)
    with pytest.raises(ArchiveInvalid) as refused:
        inspect(path)
    return refused.value.reason


def test_parts_of_names_are_case_folded_once() -> None:
    folded: list[str] = []

    def count(part: str) -> str:
        folded.append(part)
        return fold_part(part)

    checker = NameChecker(fold=count)
    names = ["/".join(["é"] * 60 + [str(n)]) for n in range(20)]
    for name in names:
        checker.add(name, is_directory=False)
    # 20 names of 60 folders and a file: parts are folded separately, not as paths.
    assert len(folded) == 20 * 61
    assert sum(map(len, folded)) <= sum(map(len, names))


def test_number_of_parts_of_a_name_is_limited() -> None:
    checker = NameChecker()
    checker.add("/".join(["d"] * 64), is_directory=False)
    with pytest.raises(ArchiveInvalid, match="has 65 parts, the limit is 64"):
        checker.add("/".join(["e"] * 65), is_directory=False)


def test_implied_folders_count_towards_the_file_limit() -> None:
    checker = NameChecker(files_max=5)
    checker.add("a/b/c", is_directory=False)
    checker.add("a/b/d", is_directory=False)
    # a, a/b, a/b/c, a/b/d and e are five.
    checker.add("e", is_directory=False)
    with pytest.raises(ArchiveInvalid, match="more than 5 files and folders"):
        checker.add("a/f", is_directory=False)


def test_total_bytes_of_names_are_limited() -> None:
    checker = NameChecker(names_bytes_max=1000)
    for n in range(10):
        checker.add(f"{n}{'d' * 99}", is_directory=False)
    with pytest.raises(ArchiveInvalid, match=r"the names hold more than 0\.0 MiB up to here"):
        checker.add("e", is_directory=False)


def test_a_character_that_folds_into_a_slash_clashes_with_the_folded_path() -> None:
    checker = NameChecker()
    checker.add("a/b", is_directory=False)
    with pytest.raises(ArchiveInvalid, match="it clashes with 'a/b'"):
        checker.add("a\uff0fb", is_directory=False)
    checker.add("c\uff0fd", is_directory=False)
    with pytest.raises(ArchiveInvalid, match="it clashes with 'c\uff0fd'"):
        checker.add("C/d", is_directory=False)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE])
def test_number_of_headers_before_an_entry_is_limited(tmp_path: Path, kind: bytes) -> None:
    chain = pax_header(b"6 a=b\n", kind)
    path = tmp_path / "good.tar.gz"
    path.write_bytes(gzip.compress(chain * 4 + tar_file() + chain * 4 + tar_file("b") + END))
    assert inspect(path).files == 2
    content = gzip.compress(chain * 20_000 + tar_file() + END)
    assert refusal(tmp_path, content) == "it has more than 4 headers before one entry"


def test_a_second_global_header_is_refused(tmp_path: Path) -> None:
    everywhere = pax_header(b"6 a=b\n", tarfile.XGLTYPE)
    content = gzip.compress(everywhere + tar_file() + everywhere + tar_file("b") + END)
    assert refusal(tmp_path, content) == "it has more than 1 global headers"


def test_size_of_a_global_header_is_limited(tmp_path: Path) -> None:
    # 85 records of 6 bytes are 510 bytes; 86 records exceed 512.
    path = tmp_path / "good.tar.gz"
    short, long = (pax_header(b"6 a=b\n" * count, tarfile.XGLTYPE) for count in (85, 86))
    path.write_bytes(gzip.compress(short + tar_file() + END))
    assert inspect(path).files == 1
    content = gzip.compress(long + tar_file() + END)
    assert refusal(tmp_path, content) == "it has more than 512 bytes in a global header"


def test_a_long_header_is_refused_unread(tmp_path: Path) -> None:
    # 2,730 records of 6 bytes are 16,380 bytes; 2,731 records exceed 16 KiB.
    for records, is_refused in ((2_730, False), (2_731, True)):
        content = gzip.compress(pax_header(b"6 a=b\n" * records) + tar_file() + END)
        if is_refused:
            assert refusal(tmp_path, content) == "it has more than 16384 bytes in a header"
        else:
            (tmp_path / "good.tar.gz").write_bytes(content)
            assert inspect(tmp_path / "good.tar.gz").files == 1


def test_total_bytes_of_headers_are_limited(tmp_path: Path) -> None:
    # 1,536 headers of 16 KiB are 24 MiB. A header of 6 bytes exceeds the limit.
    record = b"16384 a=" + b"x" * (16_384 - 9) + b"\n"
    entries = [pax_header(record) + tar_file(str(number)) for number in range(1_536)]
    path = tmp_path / "good.tar.gz"
    path.write_bytes(gzip.compress(b"".join(entries) + END, compresslevel=0))
    assert inspect(path).files == 1_536
    entries.append(pax_header(b"6 a=b\n") + tar_file("last"))
    content = gzip.compress(b"".join(entries) + END, compresslevel=0)
    assert refusal(tmp_path, content) == "it has more than 25165824 bytes in its headers"


def test_number_of_gzip_members_is_limited(tmp_path: Path) -> None:
    read: list[int] = []

    class CountingFile(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            read.append(size or 0)
            return super().read(size)

    content = archive_reader._GzipContent(CountingFile(gzip.compress(b"") * 1_000_000))
    with pytest.raises(ArchiveInvalid, match="compressed in more than 16 pieces"):
        content.read(1)
    assert len(read) == 1


def test_packed_archives_respect_the_readers_limits(tmp_path: Path) -> None:
    deep = tmp_path / "tree" / "/".join(["é" * 100] * 4)
    deep.mkdir(parents=True)
    for n in range(30):
        (deep / f"{n}.py").touch()
    with pack(tmp_path / "tree") as archive:
        # Four folders and thirty files with names of 800 bytes, in separate headers.
        assert inspect(archive.path).files == 30
    (deep / "/".join("d" * 61)).mkdir(parents=True)
    with pytest.raises(ArchiveInvalid, match="has 65 parts"):
        pack(tmp_path / "tree")
