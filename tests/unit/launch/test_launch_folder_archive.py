"""The archive of a folder: modes, links, files that change while they are packed, hostile names."""

import io
import os
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from detcloud.launch import folder_archive
from detcloud.launch.folder_archive import (
    EMPTY_FINGERPRINT,
    ArchiveRefused,
    FolderRules,
    empty_folder,
    pack_folder,
    scan_folder,
    unpack_folder,
)

ALL = FolderRules()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "folder"
    (folder / "src" / "empty").mkdir(parents=True)
    (folder / "src" / "run.sh").write_text("echo 1")
    (folder / "src" / "run.sh").chmod(0o750)
    (folder / "notes.ipynb").write_bytes(b"{}")
    (folder / "latest").symlink_to("src/run.sh")
    return folder


def pack(folder: Path, rules: FolderRules = ALL) -> tuple[Path, list[str]]:
    """Pack a folder; return the archive and the names that were left out."""
    archive = folder.parent / "folder.tar"
    with archive.open("wb") as file:
        content = pack_folder(folder, file, rules)
    return archive, content.left_out


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_unpacked_folder_has_modes_links_and_empty_folders(folder: Path, tmp_path: Path) -> None:
    os.utime(folder / "notes.ipynb", (1_000_000_000, 1_000_000_000))
    (folder / "src").chmod(0o500)
    archive, left_out = pack(folder)
    copy = tmp_path / "copy"
    copy.mkdir()
    unpack_folder(archive, copy)
    (folder / "src").chmod(0o700)
    assert left_out == []
    assert names(copy) == names(folder)
    assert stat.S_IMODE((copy / "src" / "run.sh").stat().st_mode) == 0o750
    assert stat.S_IMODE((copy / "src").stat().st_mode) == 0o500
    assert (copy / "latest").readlink() == Path("src/run.sh")
    assert (copy / "notes.ipynb").stat().st_mtime == 1_000_000_000


def test_links_out_mounts_and_special_files_are_left_out(folder: Path) -> None:
    (folder / "passwd").symlink_to("/etc/passwd")
    (folder / "src" / "above").symlink_to("../../other")
    (folder / "data").mkdir()
    (folder / "data" / "large.bin").write_bytes(b"1")
    os.mkfifo(folder / "pipe")
    archive, left_out = pack(folder, FolderRules(mounts={"data"}))
    assert left_out == [
        "data (a mount)",
        "passwd (a link that leads out of the folder)",
        "pipe (a special file)",
        "src/above (a link that leads out of the folder)",
    ]
    with tarfile.open(archive) as tar:
        assert not {"data", "data/large.bin", "passwd", "pipe"} & {*tar.getnames()}


def test_ignored_names_are_not_reported(folder: Path) -> None:
    rules = FolderRules(keep=lambda name: name not in ("src/", "latest"))
    archive, left_out = pack(folder, rules)
    assert left_out == []
    with tarfile.open(archive) as tar:
        assert tar.getnames() == ["notes.ipynb"]


def change_name(folder: Path) -> None:
    (folder / "notes.ipynb").rename(folder / "other.ipynb")


def change_time(folder: Path) -> None:
    os.utime(folder / "notes.ipynb", (1_000_000_000, 1_000_000_000))


def change_mode(folder: Path) -> None:
    (folder / "src" / "run.sh").chmod(0o700)


def change_link(folder: Path) -> None:
    (folder / "latest").unlink()
    (folder / "latest").symlink_to("notes.ipynb")


@pytest.mark.parametrize("change", [change_name, change_time, change_mode, change_link])
def test_each_change_changes_the_fingerprint(folder: Path, change: Callable[[Path], None]) -> None:
    before = scan_folder(folder, ALL)
    assert scan_folder(folder, ALL) == before
    assert (before.size_bytes, before.entries) == (8, 5)
    change(folder)
    assert scan_folder(folder, ALL).fingerprint != before.fingerprint


def test_empty_folder_has_a_known_fingerprint(tmp_path: Path) -> None:
    assert scan_folder(tmp_path, ALL).fingerprint == EMPTY_FINGERPRINT


@pytest.mark.parametrize(("size_then", "content"), [(1, b"a\0\0\0"), (8, b"aaaa")])
def test_file_that_changes_while_packed_keeps_the_archive_valid(
    folder: Path, monkeypatch: pytest.MonkeyPatch, size_then: int, content: bytes
) -> None:
    changing = folder / "changing"
    changing.write_bytes(b"aaaa")
    real = folder_archive._PaddedFile

    def change_first(file: io.BufferedReader) -> folder_archive._PaddedFile:
        # The size is announced, and nothing is read yet.
        if os.fstat(file.fileno()).st_ino == changing.stat().st_ino:
            changing.write_bytes(b"a" * size_then)
        return real(file)

    monkeypatch.setattr(folder_archive, "_PaddedFile", change_first)
    archive, _ = pack(folder)
    with tarfile.open(archive) as tar:
        packed = tar.extractfile("changing")
        assert packed is not None
        assert packed.read() == content
        assert tar.getnames()[-1] == "src/run.sh"


def test_unreadable_file_is_left_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def refuse(path: str | Path, flags: int) -> int:
        if str(path).endswith("notes.ipynb"):
            raise PermissionError(13, "Permission denied")
        return real(path, flags)

    monkeypatch.setattr(os, "open", refuse)
    assert pack(folder)[1] == ["notes.ipynb (cannot be read: Permission denied)"]


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ([entry("/etc/passwd")], "the name '/etc/passwd'"),
        ([entry("../up")], "the name '../up'"),
        ([entry("a", tarfile.DIRTYPE), entry("a/../../up")], "the name 'a/../../up'"),
        ([entry("a/b")], "'a/b' without its folder"),
        ([entry("a", tarfile.SYMTYPE, "."), entry("a/b")], "'a/b' without its folder"),
        ([entry("a", tarfile.SYMTYPE, "/etc")], "the link 'a', which leads out"),
        ([entry("a", tarfile.SYMTYPE, "b/../../c")], "the link 'a', which leads out"),
        ([entry("a", tarfile.LNKTYPE, "../up")], "the special file 'a'"),
        ([entry("a", tarfile.FIFOTYPE)], "the special file 'a'"),
        ([entry("a", tarfile.CHRTYPE)], "the special file 'a'"),
        ([entry("a"), entry("a")], "exists already"),
        ([entry("a", tarfile.SYMTYPE, "b"), entry("a")], "exists already"),
        ([entry("a", tarfile.SYMTYPE, "b"), entry("a", tarfile.DIRTYPE)], "exists already"),
    ],
)
def test_hostile_archive_is_refused_and_writes_nothing_outside(
    tmp_path: Path, entries: list[tarfile.TarInfo], reason: str
) -> None:
    archive, folder = tmp_path / "hostile.tar", tmp_path / "folder"
    folder.mkdir()
    with tarfile.open(archive, "w") as tar:
        for info in entries:
            tar.addfile(info)
    with pytest.raises(ArchiveRefused, match=reason):
        unpack_folder(archive, folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "hostile.tar"]


def test_damaged_archive_is_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "z.bin").write_bytes(bytes(100_000))
    archive, _ = pack(folder)
    archive.write_bytes(archive.read_bytes()[:50_000])
    copy = tmp_path / "copy"
    copy.mkdir()
    with pytest.raises(ArchiveRefused, match=r"damaged|not complete"):
        unpack_folder(archive, copy)


def test_set_id_bits_are_not_restored(tmp_path: Path) -> None:
    archive, folder = tmp_path / "bits.tar", tmp_path / "folder"
    folder.mkdir()
    info = entry("tool")
    info.mode = 0o6755
    with tarfile.open(archive, "w") as tar:
        tar.addfile(info)
    unpack_folder(archive, folder)
    assert stat.S_IMODE((folder / "tool").stat().st_mode) == 0o755


def test_emptied_folder_keeps_mounts_and_links_out(folder: Path) -> None:
    (folder / "volume").symlink_to("/srv")
    (folder / "src" / "data").mkdir()
    (folder / "src" / "data" / "large.bin").write_bytes(b"1")
    empty_folder(folder, {"src/data"})
    assert names(folder) == ["src", "src/data", "src/data/large.bin", "volume"]
