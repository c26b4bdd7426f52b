"""Hostile archives of model code.

The extractor writes only below the folder and raises only ArchiveInvalid. An accepted archive is
extracted exactly.
"""

from __future__ import annotations

import gzip
import io
import os
import random
import resource
import struct
import tarfile
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from detcloud.shared.archive import extract, inspect
from detcloud.shared.archive_limits import ArchiveInvalid

BLOCK = 512
NAMES = ["a", "b/c", "a/../../x", "/x", "é" * 60, "d" * 120, "x/" * 60 + "y", "A", "a/", "", "."]
KINDS = [
    tarfile.REGTYPE,
    tarfile.AREGTYPE,
    tarfile.DIRTYPE,
    tarfile.SYMTYPE,
    tarfile.LNKTYPE,
    tarfile.CHRTYPE,
    tarfile.FIFOTYPE,
    tarfile.CONTTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.GNUTYPE_SPARSE,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    b"V",
    b"M",
    b"D",
    b"\x00",
    b"\xff",
]


def header(name: str, kind: bytes = tarfile.REGTYPE, size: int = 0, link: str = "") -> bytes:
    """Return a header block with any content."""
    info = tarfile.TarInfo(name[:100])
    info.type, info.size, info.linkname = kind, size, link[:100]
    return info.tobuf(tarfile.GNU_FORMAT, errors="surrogateescape")[-BLOCK:]


def pad_block(content: bytes) -> bytes:
    return content + bytes(-len(content) % BLOCK)


def file(name: str, content: bytes = b"1", size: int | None = None) -> bytes:
    return header(name, size=len(content) if size is None else size) + pad_block(content)


def pax(fields: dict[str, str], kind: bytes = tarfile.XHDTYPE) -> bytes:
    records = b""
    for name, value in fields.items():
        rest = b" " + name.encode() + b"=" + value.encode("utf-8", "surrogateescape") + b"\n"
        size = len(rest)
        while size != len(rest) + len(str(size)):
            size = len(rest) + len(str(size))
        records += str(size).encode() + rest
    return header("pax", kind, len(records)) + pad_block(records)


def long_name(name: bytes, kind: bytes = tarfile.GNUTYPE_LONGNAME) -> bytes:
    return header("././@LongLink", kind, len(name) + 1) + pad_block(name + b"\0")


END = bytes(2 * BLOCK)


def refusal_of(read: Callable[[], object]) -> ArchiveInvalid | None:
    try:
        read()
    except ArchiveInvalid as error:
        return error
    return None


class ExtractionHarness:
    """A folder for the extraction, with files outside that must stay unchanged."""

    def __init__(self, folder: Path) -> None:
        self.place = folder / "harness" / "place"
        self.place.mkdir(parents=True)
        self.beside = folder / "harness" / "beside"
        self.beside.write_text("untouched")
        self.archive = folder / "a.tar.gz"

    def take(self, content: bytes) -> ArchiveInvalid | list[str]:
        """Return the extracted names, or the refusal; raise AssertionError for any other effect."""
        self.archive.write_bytes(content)
        out = self.place / "out"
        refused = refusal_of(lambda: extract(self.archive, out))
        assert str(refusal_of(lambda: inspect(self.archive))) == str(refused)
        assert self.beside.read_text() == "untouched"
        assert sorted(p.name for p in self.place.parent.iterdir()) == ["beside", "place"]
        if refused is not None:
            assert list(self.place.iterdir()) == []
            return refused
        assert [path.name for path in self.place.iterdir()] == ["out"]
        return list(self._checked_names(out))

    def _checked_names(self, out: Path) -> Iterator[str]:
        for path in sorted(out.rglob("*")):
            assert not path.is_symlink()
            assert path.is_dir() or path.is_file()
            assert path.stat().st_nlink == 1 or path.is_dir()
            assert path.stat().st_mode & 0o7000 == 0
            yield path.relative_to(out).as_posix()
        for path in sorted(out.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        out.rmdir()


@pytest.fixture
def harness(tmp_path: Path) -> ExtractionHarness:
    return ExtractionHarness(tmp_path)


LINK, HARD = tarfile.SYMTYPE, tarfile.LNKTYPE

SLIPS = {
    "a link into a link": header("a", LINK, link=".") + header("a/b", LINK, link="..") + file("c"),
    "a link of a link": header("a", LINK, link="b") + header("b", LINK, link="..") + file("a/x"),
    "a hard link to a link": header("a", LINK, link="..") + header("b", HARD, link="a"),
    "a hard link to a file before": file("a") + header("b", HARD, link="a"),
    "a hard link out": header("a", HARD, link="../../beside"),
    "a link with content": header("a", LINK, 5, "..") + pad_block(b"12345"),
    "a link through a long name": long_name(b"../" * 40, tarfile.GNUTYPE_LONGLINK)
    + header("a", LINK),
    "a long name that leaves": long_name(b"../" * 50 + b"x") + file("a"),
    "a long name that is absolute": long_name(b"/" + b"x" * 150) + file("a"),
    "a long name of NULs": long_name(b"\0" * 200) + file("a"),
    "a long name without a file": long_name(b"x" * 150),
    "two long names": long_name(b"x" * 150) + long_name(b"../" * 60) + file("a"),
    "a huge long name": header("L", tarfile.GNUTYPE_LONGNAME, 2**33) + bytes(BLOCK),
    "a path of pax that leaves": pax({"path": "../../x"}) + file("a"),
    "a global path of pax": pax({"path": "../../x"}, tarfile.XGLTYPE) + file("a"),
    "a link path of pax": pax({"linkpath": "../.."}) + header("a", LINK, link="b"),
    "a pax name of a sparse file": pax({"GNU.sparse.name": "../../x", "GNU.sparse.map": "0,1"})
    + file("a"),
    "a pax size that is larger": pax({"size": "999999999999"}) + file("a"),
    "a pax size that is negative": pax({"size": "-512"}) + file("a"),
    "a pax size that is no number": pax({"size": "1e3"}) + file("a"),
    "a pax record of a wrong length": header("x", tarfile.XHDTYPE, 12) + pad_block(b"99 path=../x"),
    "a pax record of length 0": header("x", tarfile.XHDTYPE, 9) + pad_block(b"0 path=x\n"),
    "a pax record of a huge length": header("x", tarfile.XHDTYPE, 30) + pad_block(b"9" * 30),
    "a pax header without a file": pax({"path": "x"}),
    "an old sparse file": header("a", tarfile.GNUTYPE_SPARSE, 5) + pad_block(b"12345"),
    "a sparse file of version 1": pax(
        {
            "GNU.sparse.major": "1",
            "GNU.sparse.minor": "0",
            "GNU.sparse.name": "x",
            "GNU.sparse.realsize": "99999999999",
        }
    )
    + file("a", b"1\n0\n9\n"),
    "a sparse map of nonsense": pax({"GNU.sparse.map": "a,b,c", "GNU.sparse.size": "9"})
    + file("a"),
    "a device with a size": header("a", tarfile.CHRTYPE, 2**40),
    "a volume header": header("a", b"V") + file("b"),
    "a file and then a folder of it": file("a") + file("a/b"),
    "a folder that is a file": header("a", tarfile.DIRTYPE) + file("a"),
    "the same twice": file("a") + file("a", b"2"),
    "the same in capitals": file("x/a") + file("X/b"),
    "the same in another form": pax({"path": "\u00e9"}) + file("a") + pax({"path": "e\u0301"}),
    "broken Unicode": pax({"path": "\udcff"}) + file("a"),
    "binary names": pax({"hdrcharset": "BINARY", "path": "\udcff\udcfe"}) + file("a"),
    "a name that turns round": file("a\x1b[2J"),
    "a setuid bit of pax": pax({"mode": "4755"}) + file("a")[:100] + b"0004755\0" + file("a")[108:],
}


@pytest.mark.parametrize("slip", SLIPS)
def test_path_trick_in_an_archive_is_refused_without_writing(
    harness: ExtractionHarness, slip: str
) -> None:
    outcome = harness.take(gzip.compress(SLIPS[slip] + END, mtime=0))
    if slip == "two long names":
        assert outcome == ["x" * 150]
        return
    if slip.startswith(("a setuid bit", "a pax header without", "a long name without")):
        # The checksum is wrong, or the archive ends early.
        assert isinstance(outcome, ArchiveInvalid) or outcome == []
        return
    assert isinstance(outcome, ArchiveInvalid), outcome
    assert outcome.reason


PLAIN = file("a") + header("d", tarfile.DIRTYPE) + file("d/b", b"22") + END


@pytest.mark.parametrize(
    ("wrapped", "names"),
    [
        (lambda raw: gzip.compress(raw[:700]) + gzip.compress(raw[700:]), ["a", "d", "d/b"]),
        (lambda raw: gzip.compress(raw) + bytes(5_000), ["a", "d", "d/b"]),
        (lambda raw: gzip.compress(raw + bytes(20 * BLOCK)), ["a", "d", "d/b"]),
        (lambda raw: gzip.compress(raw[:-BLOCK]), ["a", "d", "d/b"]),
        (lambda raw: gzip.compress(b"") * 15 + gzip.compress(raw), ["a", "d", "d/b"]),
        (lambda raw: gzip.compress(b"") * 16 + gzip.compress(raw), None),
        (lambda raw: gzip.compress(raw) + b"garbage", None),
        (lambda raw: gzip.compress(raw) + gzip.compress(b"x")[:-3], None),
        (lambda raw: gzip.compress(raw)[:-1], None),
        (lambda raw: gzip.compress(raw)[:-8] + struct.pack("<II", 0, len(raw)), None),
        (lambda raw: gzip.compress(raw)[:-4] + struct.pack("<I", 2**32 - 1), None),
        (lambda raw: raw, None),
        (lambda raw: gzip.compress(gzip.compress(raw)), None),
        (lambda raw: zlib.compress(raw), None),
        (lambda raw: b"", None),
        (lambda raw: b"\x1f\x8b", None),
        (lambda raw: b"PK\x03\x04" + raw, None),
        (lambda raw: gzip.compress(b""), None),
        (lambda raw: gzip.compress(b"\0"), None),
        (lambda raw: gzip.compress(b"x" * 100_000), None),
    ],
    ids=[
        "in two members",
        "zeros behind",
        "more zeros within",
        "half an end",
        "empty members before",
        "too many members before",
        "garbage behind",
        "half a member behind",
        "a byte short",
        "a wrong sum",
        "a wrong size",
        "not compressed",
        "twice compressed",
        "another compression",
        "empty",
        "a beginning",
        "a zip file",
        "compressed nothing",
        "a zero",
        "no tar",
    ],
)
def test_data_around_an_archive_is_read_to_the_end(
    harness: ExtractionHarness, wrapped: Callable[[bytes], bytes], names: list[str] | None
) -> None:
    outcome = harness.take(wrapped(PLAIN))
    if names is None:
        assert isinstance(outcome, ArchiveInvalid), outcome
    else:
        assert outcome == names


@pytest.mark.parametrize("zeros", [0, 1, 5, 127, 128, 300])
def test_files_behind_the_end_of_an_archive_are_refused(
    harness: ExtractionHarness, zeros: int
) -> None:
    # Other readers continue behind the end, and would see different files.
    hidden = bytes(zeros * BLOCK) + file("hidden") + END
    outcome = harness.take(gzip.compress(PLAIN + hidden))
    assert isinstance(outcome, ArchiveInvalid)
    assert "after its end" in outcome.reason or "longer than any real one" in outcome.reason


@pytest.mark.parametrize("place", [0, 100, 148, 156, 257])
@pytest.mark.parametrize("entry", [0, 1, 2])
def test_damaged_header_is_not_mistaken_for_the_end(
    harness: ExtractionHarness, place: int, entry: int
) -> None:
    # Of the three headers, at blocks 0, 2 and 3.
    at = (0, 2, 3)[entry] * BLOCK + place
    damaged = PLAIN[:at] + b"\xee" + PLAIN[at + 1 :]
    assert isinstance(harness.take(gzip.compress(damaged)), ArchiveInvalid)


def seconds_to_refuse(harness: ExtractionHarness, content: bytes) -> float:
    began = time.process_time()
    assert isinstance(harness.take(content), ArchiveInvalid)
    return time.process_time() - began


def test_archive_bombs_are_refused_quickly_in_little_memory(harness: ExtractionHarness) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    one = zlib.compressobj(9, zlib.DEFLATED, 31)
    zeros = bytes(2**20)
    bomb = one.compress(header("a", size=2**33)) + b"".join(one.compress(zeros) for _ in range(300))
    bomb += one.flush()
    assert len(bomb) < 2**20
    assert seconds_to_refuse(harness, bomb) < 5
    # 300 MiB behind the end, in separate gzip members.
    tail = gzip.compress(PLAIN) + gzip.compress(zeros) * 300
    assert seconds_to_refuse(harness, tail) < 5
    # Headers that each announce a further header, so that the reader recurses.
    chain = pax({"comment": "x"}) * 5_000
    assert seconds_to_refuse(harness, gzip.compress(chain + file("a") + END)) < 5
    # KiB on Linux: a tenth of the bombs' content.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 120 * 1024


def test_deep_folders_are_accepted_up_to_the_limit_of_parts(harness: ExtractionHarness) -> None:
    deep = "/".join("d" * 63)
    outcome = harness.take(gzip.compress(pax({"path": f"{deep}/f"}) + file("a") + END))
    # 63 folders and a file.
    assert isinstance(outcome, list)
    assert len(outcome) == 64
    too_deep = f"{deep}/d/f"
    assert isinstance(
        harness.take(gzip.compress(pax({"path": too_deep}) + file("a") + END)), ArchiveInvalid
    )


def samples() -> list[bytes]:
    """Return archives for mutation: every format, with every kind of extension."""
    made = [PLAIN, *(content + END for content in SLIPS.values())]
    for form in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
            for name, content in [("a", b"1" * 600), ("d/" + "n" * 90, b"2"), ("é", b"")]:
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
        made.append(buffer.getvalue()[: 16 * BLOCK])
    return made


SAMPLES = samples()
FUZZ = settings(
    max_examples=int(os.environ.get("HOSTILE_EXAMPLES", "250")),
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


def correct_checksums(raw: bytes) -> bytes:
    """Return the archive with corrected header checksums, so that readers reach the mutations."""
    mended = bytearray(raw)
    for start in range(0, len(raw) - BLOCK + 1, BLOCK):
        block = mended[start : start + BLOCK]
        if block[257:262] == b"ustar":
            block[148:156] = b" " * 8
            mended[start + 148 : start + 156] = b"%06o\0 " % sum(block)
    return bytes(mended)


@FUZZ
@given(st.data())
def test_changed_bytes_of_a_tar_do_no_harm(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    raw = bytearray(data.draw(st.sampled_from(SAMPLES)))
    for _ in range(data.draw(st.integers(1, 6))):
        place = data.draw(st.integers(0, max(0, len(raw) - 1)))
        new = data.draw(st.binary(min_size=1, max_size=12) | st.sampled_from(TOKENS))
        match data.draw(st.sampled_from(["write", "insert", "cut", "repeat"])):
            case "write":
                raw[place : place + len(new)] = new
            case "insert":
                raw[place:place] = new
            case "cut":
                del raw[place : place + BLOCK]
            case _:
                start = place // BLOCK * BLOCK
                raw[start:start] = raw[start : start + 2 * BLOCK]
    content = correct_checksums(bytes(raw)) if data.draw(st.booleans()) else bytes(raw)
    ExtractionHarness(tmp_path_factory.mktemp("fuzz")).take(gzip.compress(content, 1, mtime=0))


@FUZZ
@given(st.lists(st.tuples(st.sampled_from(KINDS), st.sampled_from(NAMES), st.integers(0, 2000))))
@example([(tarfile.GNUTYPE_LONGNAME, "a", 300)] * 20)
@example([(tarfile.XGLTYPE, "a", 300)] * 20)
def test_entries_in_any_order_do_no_harm(
    tmp_path_factory: pytest.TempPathFactory, entries: list[tuple[bytes, str, int]]
) -> None:
    chance = random.Random(len(entries))
    raw = b"".join(
        header(name, kind, size, "../x") + pad_block(chance.randbytes(size))
        for kind, name, size in entries
    )
    ExtractionHarness(tmp_path_factory.mktemp("fuzz")).take(gzip.compress(raw + END, 1, mtime=0))


@FUZZ
@given(st.binary(max_size=600), st.integers(0, 400), st.integers(0, 3))
def test_changed_bytes_of_the_compression_do_no_harm(
    tmp_path_factory: pytest.TempPathFactory, new: bytes, place: int, copies: int
) -> None:
    whole = bytearray(gzip.compress(PLAIN, mtime=0))
    whole[place : place + len(new)] = new
    ExtractionHarness(tmp_path_factory.mktemp("fuzz")).take(
        bytes(whole) + bytes(whole[10:]) * copies
    )


TOKENS = [
    b"../../x",
    b"/etc/x\0",
    b"\x80\x00\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff",
    b"\xff" * 12,
    b"77777777777\0",
    b"0",
    b"1",
    b"2",
    b"5",
    b"L",
    b"K",
    b"S",
    b"x",
    b"g",
    b"ustar\x0000",
    b"ustar  \0",
    b"30 path=../../../../../../x/y\n",
    b"20 size=99999999999\n",
    b"22 GNU.sparse.major=1\n",
    b"19 GNU.sparse.map=0\n",
    b"\0" * BLOCK,
]
