"""Packing is deterministic and limited; unpacking refuses hostile archives."""

import gzip
import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from detcloud.shared.archive import (
    ArchiveContents,
    extract,
    inspect,
    pack,
)
from detcloud.shared.archive_limits import ArchiveInvalid
from detcloud.shared.archive_names import check_name
from detcloud.shared.files import sha256_of


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "model"
    (root / "data" / "empty").mkdir(parents=True)
    (root / "model_def.py").write_text("print('hello')\n")
    (root / "data" / "run.sh").write_text("#!/bin/sh\n")
    (root / "data" / "run.sh").chmod(0o700)
    return root


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == [], "a temporary file was not deleted"


def tar_of(path: Path, *entries: tarfile.TarInfo | tuple[str, bytes]) -> Path:
    """Write a .tar.gz to `path` and return the path; a tuple is a regular file with content."""
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as tar:
        for entry in entries:
            if isinstance(entry, tarfile.TarInfo):
                tar.addfile(entry, io.BytesIO(b"\0" * entry.size))
                continue
            info = tarfile.TarInfo(entry[0])
            info.size = len(entry[1])
            tar.addfile(info, io.BytesIO(entry[1]))
    return path


def entry_of(
    name: str, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644
) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, mode
    return info


def refusal(archive: Path, tmp_path: Path) -> ArchiveInvalid:
    """Assert that `extract` and `inspect` refuse alike and leave no file; return the error."""
    folder = tmp_path / "place"
    folder.mkdir()
    with pytest.raises(ArchiveInvalid) as extracted:
        extract(archive, folder / "out")
    with pytest.raises(ArchiveInvalid) as inspected:
        inspect(archive)
    assert str(extracted.value) == str(inspected.value)
    assert list(folder.iterdir()) == []
    return extracted.value


def test_unpacked_tree_equals_the_packed_tree(tree: Path, tmp_path: Path) -> None:
    with pack(tree) as archive:
        assert archive.files == 2
        assert archive.file_bytes == 15 + 10
        assert archive.sha256 == sha256_of(archive.path)
        assert inspect(archive.path) == ArchiveContents(files=2, directories=2, file_bytes=25)
        extract(archive.path, tmp_path / "new" / "out")
    out = tmp_path / "new" / "out"
    names = sorted(path.relative_to(out).as_posix() for path in out.rglob("*"))
    assert names == ["data", "data/empty", "data/run.sh", "model_def.py"]
    assert (out / "model_def.py").read_text() == "print('hello')\n"
    assert (out / "model_def.py").stat().st_mode & 0o7777 == 0o644
    assert (out / "data" / "run.sh").stat().st_mode & 0o7777 == 0o755
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["out"]


def test_digest_ignores_times_and_permissions(tree: Path) -> None:
    with pack(tree) as first:
        os.utime(tree / "model_def.py", (1, 1))
        (tree / "data" / "run.sh").chmod(0o755)
        (tree / "model_def.py").chmod(0o600)
        with pack(tree) as second:
            assert first.sha256 == second.sha256
    (tree / "model_def.py").write_text("print('hellO')\n")
    with pack(tree) as third:
        assert third.sha256 != second.sha256


def test_an_excluded_folder_is_not_entered(tree: Path) -> None:
    checked: list[str] = []

    def keep(name: str) -> bool:
        checked.append(name)
        return name != "data/"

    with pack(tree, keep) as archive:
        assert archive.files == 1
    assert checked == ["data/", "model_def.py"]


def test_error_for_oversized_content_names_the_largest_files(tree: Path) -> None:
    (tree / "weights.bin").write_bytes(b"x" * 3 * 2**20)
    # 3 MiB + 25 bytes > 3 MiB
    with pytest.raises(ArchiveInvalid, match=r"hold 3\.0 MiB, the limit is 3\.0 MiB; the") as error:
        pack(tree, bytes_max=3 * 2**20)
    assert str(error.value).startswith(f"'{tree}': the files hold")
    # The remaining files have 25 bytes, less than a hundredth.
    assert "; the largest files are weights.bin (3.0 MiB); exclude" in str(error.value)
    with pack(tree, bytes_max=3 * 2**20 + 25) as archive:
        assert archive.file_bytes == 3 * 2**20 + 25


def test_too_many_files_are_refused(tree: Path) -> None:
    with pytest.raises(ArchiveInvalid, match="more than 3 files") as error:
        pack(tree, files_max=3)
    assert str(error.value).startswith(f"'{tree}': ")
    assert "the folders with most of them are data/ (" in str(error.value)
    with pack(tree, files_max=4) as archive, pytest.raises(ArchiveInvalid, match="more than 3 ent"):
        inspect(archive.path, files_max=3)


def test_links_inside_the_tree_are_stored_as_content(tree: Path, tmp_path: Path) -> None:
    (tree / "linked.py").symlink_to("model_def.py")
    (tree / "linked_data").symlink_to(tree / "data")
    with pack(tree) as archive:
        extract(archive.path, tmp_path / "out")
    assert not (tmp_path / "out" / "linked.py").is_symlink()
    assert (tmp_path / "out" / "linked.py").read_text() == "print('hello')\n"
    assert (tmp_path / "out" / "linked_data" / "run.sh").read_text() == "#!/bin/sh\n"


def test_outside_broken_and_recursive_links_are_refused(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("key")
    link = tree / "data" / "link"
    for target, reason in [
        (tmp_path / "secret", "leads out of the folder"),
        (Path("../../secret"), "leads out of the folder"),
        (Path("missing"), "the link is broken"),
        (Path("link"), "the link is broken"),
        (tree, "a folder around itself"),
        (Path(), "a folder around itself"),
    ]:
        link.symlink_to(target)
        with pytest.raises(ArchiveInvalid, match=reason) as error:
            pack(tree)
        assert error.value.name == "data/link"
        with pack(tree, lambda name: not name.startswith("data/link")) as archive:
            assert archive.files == 2
        link.unlink()


def test_links_in_a_circle_are_refused(tree: Path) -> None:
    (tree / "a").mkdir()
    (tree / "b").mkdir()
    (tree / "a" / "to_b").symlink_to(tree / "b")
    (tree / "b" / "to_a").symlink_to(tree / "a")
    with pytest.raises(ArchiveInvalid, match="around itself"):
        pack(tree)


def test_special_files_and_bad_names_are_refused_when_packing(tree: Path) -> None:
    os.mkfifo(tree / "pipe")
    with pytest.raises(ArchiveInvalid, match="'pipe': it is neither a file nor a directory"):
        pack(tree)
    (tree / "pipe").unlink()
    (tree / "Model_Def.py").touch()
    with pytest.raises(ArchiveInvalid, match="clashes with"):
        pack(tree)
    (tree / "Model_Def.py").unlink()
    Path(os.fsdecode(os.fsencode(tree) + b"/\xff.py")).touch()
    with pytest.raises(ArchiveInvalid, match="broken Unicode"):
        pack(tree)


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArchiveInvalid, match="no such directory"):
        pack(tmp_path / "nothing")


NAMES_REFUSED = [
    ("/etc/passwd", "must be relative"),
    ("//host/share/x", "must be relative"),
    ("C:/windows/x", "must be relative"),
    ("c:x", "must be relative"),
    ("..", "'..'"),
    ("../x", "'..'"),
    ("a/../../x", "'..'"),
    ("a/./x", "'.'"),
    ("./x", "'.'"),
    ("a//x", "empty parts"),
    ("..\\x", "backslash"),
    ("a\\..\\..\\x", "backslash"),
    ("\\\\host\\share", "backslash"),
    ("a\0b", "control characters"),
    ("a\nb", "control characters"),
    ("a\x1b[2Jb", "control characters"),
    ("x" * 256, "longer than"),
    ("/".join(["x" * 200] * 6), "longer than"),
]


@pytest.mark.parametrize(("name", "reason"), NAMES_REFUSED)
def test_names_that_could_leave_the_folder_are_refused(
    name: str, reason: str, tmp_path: Path
) -> None:
    # A plain header ends a name at NUL; the PAX record keeps the NUL.
    info = tarfile.TarInfo(name.replace("\0", "?"))
    info.pax_headers = {"path": name}
    error = refusal(tar_of(tmp_path / "a.tar.gz", info), tmp_path)
    assert reason in error.reason
    assert error.name == name


def test_percent_signs_and_semicolons_are_allowed_in_names(tmp_path: Path) -> None:
    names = ["%2e%2e", "%252e", "a;b", "...", "..a", "ünï/日本.py"]
    archive = tar_of(tmp_path / "a.tar.gz", *[(name, b"1") for name in names])
    extract(archive, tmp_path / "out")
    assert (tmp_path / "out" / "%2e%2e").read_bytes() == b"1"
    assert (tmp_path / "out" / "ünï" / "日本.py").read_bytes() == b"1"
    assert inspect(archive).files == len(names)


@pytest.mark.parametrize(
    ("kind", "link", "reason"),
    [
        (tarfile.SYMTYPE, "model.py", "links"),
        (tarfile.SYMTYPE, "../../etc/passwd", "links"),
        (tarfile.LNKTYPE, "model.py", "links"),
        (tarfile.LNKTYPE, "/etc/shadow", "links"),
        (tarfile.FIFOTYPE, "", "only regular"),
        (tarfile.CHRTYPE, "", "only regular"),
        (tarfile.BLKTYPE, "", "only regular"),
        (tarfile.CONTTYPE, "", "only regular"),
        (b"V", "", "only regular"),
    ],
)
def test_links_and_devices_are_refused(kind: bytes, link: str, reason: str, tmp_path: Path) -> None:
    archive = tar_of(tmp_path / "a.tar.gz", ("model.py", b"1"), entry_of("x", kind, link))
    assert reason in refusal(archive, tmp_path).reason


def test_a_file_cannot_be_written_through_an_earlier_link(tmp_path: Path) -> None:
    archive = tar_of(
        tmp_path / "a.tar.gz",
        entry_of("out", tarfile.SYMTYPE, str(tmp_path)),
        ("out/pwned", b"1"),
    )
    refusal(archive, tmp_path)
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("mode", [0o4755, 0o2755, 0o1777])
def test_setuid_setgid_and_sticky_bits_are_refused(mode: int, tmp_path: Path) -> None:
    archive = tar_of(tmp_path / "a.tar.gz", entry_of("x", mode=mode))
    assert "setuid" in refusal(archive, tmp_path).reason


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        ("a.py", "a.py", "twice"),
        ("a.py", "A.py", "clashes"),
        ("a/x", "A/y", "clashes"),
        ("caf\u00e9", "cafe\u0301", "clashes"),
        ("ﬁle", "file", "clashes"),
        ("straße", "STRASSE", "clashes"),
        ("a.py", "a\u200b.py", "clashes"),
        ("a", "a/b", "both as a file"),
        ("a/b", "a", "both as a file"),
    ],
)
def test_clashing_names_are_refused(first: str, second: str, reason: str, tmp_path: Path) -> None:
    archive = tar_of(tmp_path / "a.tar.gz", (first, b"1"), (second, b"2"))
    assert reason in refusal(archive, tmp_path).reason


def test_sparse_files_are_refused(tmp_path: Path) -> None:
    info = entry_of("x")
    info.size = 0
    info.pax_headers = {"GNU.sparse.map": "0,0", "GNU.sparse.size": "1000000000000"}
    archive = tar_of(tmp_path / "a.tar.gz", info)
    assert "sparse" in refusal(archive, tmp_path).reason


def test_a_bomb_is_refused_before_it_expands(tmp_path: Path) -> None:
    # 90 MiB of zeros shrink about 1000 times, above the ratio of 200 that is checked after 16 MiB.
    info = entry_of("zeros")
    info.size = 90 * 2**20
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as tar, Path("/dev/zero").open("rb") as zeros:
        tar.addfile(info, zeros)
    assert "more than 200 times" in refusal(tmp_path / "a.tar.gz", tmp_path).reason


def test_content_over_the_limit_is_refused_at_its_header(tmp_path: Path) -> None:
    archive = tar_of(tmp_path / "a.tar.gz", ("a", b"12345"), ("b", b"123456"))
    assert inspect(archive, bytes_max=11).file_bytes == 11
    with pytest.raises(ArchiveInvalid, match="'b': the files hold more than") as error:
        inspect(archive, bytes_max=10)
    assert error.value.name == "b"


def test_a_header_with_a_huge_size_is_refused(tmp_path: Path) -> None:
    info = entry_of("x")
    info.size = 2**50
    path = tmp_path / "a.tar.gz"
    path.write_bytes(gzip.compress(info.tobuf(tarfile.GNU_FORMAT)))
    assert "hold more than 95.0 MiB" in refusal(path, tmp_path).reason


def test_long_headers_are_not_read_into_memory(tmp_path: Path) -> None:
    info = entry_of("x")
    info.pax_headers = {"comment": os.urandom(2**20).hex()}
    archive = tar_of(tmp_path / "a.tar.gz", info)
    assert "more than 16384 bytes in a header" in refusal(archive, tmp_path).reason


def test_a_directory_with_content_is_refused(tmp_path: Path) -> None:
    info = entry_of("x", tarfile.DIRTYPE)
    info.size = 512
    path = tmp_path / "a.tar.gz"
    path.write_bytes(gzip.compress(info.tobuf(tarfile.GNU_FORMAT) + bytes(512 * 3)))
    assert "its size cannot be 512" in refusal(path, tmp_path).reason


def test_a_long_tail_is_refused(tree: Path, tmp_path: Path) -> None:
    with pack(tree) as archive:
        path = tmp_path / "a.tar.gz"
        path.write_bytes(archive.path.read_bytes() + gzip.compress(bytes(2**20)))
    assert "longer than any real one" in refusal(path, tmp_path).reason


def test_cuts_and_flipped_bytes_are_detected(tree: Path, tmp_path: Path) -> None:
    with pack(tree) as archive:
        whole = archive.path.read_bytes()
    path = tmp_path / "a.tar.gz"
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(ArchiveInvalid):
            inspect(path)
    # Byte 9 of the gzip header names the operating system, and is not verified.
    for place in range(10, len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        with pytest.raises(ArchiveInvalid):
            inspect(path)


def test_extract_refuses_a_non_empty_folder(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    (tmp_path / "empty").mkdir()
    with pack(tree) as archive:
        with pytest.raises(FileExistsError):
            extract(archive.path, tmp_path / "full")
        extract(archive.path, tmp_path / "empty")
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["mine"]
    assert (tmp_path / "empty" / "model_def.py").exists()


@settings(
    max_examples=200,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.data())
def test_damaged_headers_are_refused_or_harmless(tmp_path: Path, data: st.DataObject) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        info = entry_of("a/" + "é" * 90)
        info.pax_headers = {"path": "a/ü"}
        tar.addfile(info)
        tar.addfile(entry_of("b"))
    raw = bytearray(buffer.getvalue())
    place = data.draw(st.integers(0, 2600))
    raw[place : place + 8] = data.draw(st.binary(min_size=1, max_size=8))
    path = tmp_path / "a.tar.gz"
    path.write_bytes(gzip.compress(bytes(raw), 1))
    try:
        inspect(path)
    except ArchiveInvalid:
        return


@given(st.text(max_size=20))
def test_accepted_names_stay_inside_the_folder(name: str) -> None:
    try:
        check_name(name)
    except ArchiveInvalid:
        return
    assert os.path.normpath(f"/root/{name}") == f"/root/{name}"


def test_packing_refuses_content_that_unpacking_refuses_as_a_bomb(tree: Path) -> None:
    with (tree / "zeros").open("wb") as file:
        file.truncate(17 * 2**20)
    # 17 MiB of zeros exceed the 16 MiB that may expand without a limit.
    with pytest.raises(ArchiveInvalid, match="expands more than 200 times"):
        pack(tree)
