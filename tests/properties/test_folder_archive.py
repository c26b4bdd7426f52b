"""Archives of folders: every tree survives, and no archive writes outside of the folder."""

import contextlib
import os
import stat
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from detcloud.launch.folder_archive import (
    ArchiveRefused,
    FolderRules,
    pack_folder,
    scan_folder,
    unpack_folder,
)

NAMES = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="/\0"), min_size=1, max_size=40
).filter(lambda name: name not in (".", "..") and len(os.fsencode(name)) <= 120)
MODES = st.integers(0, 0o777).map(lambda mode: mode | 0o600)
TREES = st.recursive(
    st.tuples(st.binary(max_size=2_000), MODES),
    lambda below: st.tuples(st.dictionaries(NAMES, below, max_size=4), MODES),
    max_leaves=12,
)
KINDS = [tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE]
HOSTILE_PARTS = st.sampled_from(["a", "b", "..", ".", "", "/", "/etc", "c\0d"])
HOSTILE_NAMES = st.lists(HOSTILE_PARTS, min_size=1, max_size=4).map("/".join)
HOSTILE = st.lists(
    st.tuples(HOSTILE_NAMES, st.sampled_from(KINDS), HOSTILE_NAMES, st.integers(0, 0o7777)),
    min_size=1,
    max_size=8,
)


def create(place: Path, tree: object) -> None:
    """Create a file (content and mode) or a folder (content by name and mode) at `place`."""
    assert isinstance(tree, tuple)
    content, mode = tree
    if isinstance(content, bytes):
        place.write_bytes(content)
        place.chmod(mode)
        return
    place.mkdir()
    for name, below in content.items():
        create(place / name, below)
    place.chmod(mode | 0o700)


def describe(folder: Path) -> dict[str, tuple[int, bytes | str]]:
    """Return mode and content of each file, folder and link below a folder, by path."""
    found: dict[str, tuple[int, bytes | str]] = {}
    for path in folder.rglob("*"):
        mode = path.lstat().st_mode
        content: bytes | str = b""
        if stat.S_ISLNK(mode):
            content = str(path.readlink())
        elif stat.S_ISREG(mode):
            content = path.read_bytes()
        found[str(path.relative_to(folder))] = (mode, content)
    return found


@settings(deadline=None, max_examples=30)
@given(st.dictionaries(NAMES, TREES, max_size=4), st.booleans())
def test_unpacked_folder_equals_the_packed_folder(trees: dict[str, object], linked: bool) -> None:
    with TemporaryDirectory() as root:
        folder, copy, archive = Path(root, "folder"), Path(root, "copy"), Path(root, "a.tar")
        folder.mkdir()
        copy.mkdir()
        for name, tree in trees.items():
            create(folder / name, tree)
        if linked and trees and not (folder / "a link").exists():
            (folder / "a link").symlink_to(next(iter(trees)))
        with archive.open("wb") as file:
            packed = pack_folder(folder, file, FolderRules())
        unpack_folder(archive, copy)
        assert describe(copy) == describe(folder)
        scanned = scan_folder(copy, FolderRules())
        assert (scanned.size_bytes, scanned.entries) == (packed.size_bytes, packed.entries)
        assert packed.left_out == []


@settings(deadline=None, max_examples=80)
@given(HOSTILE)
def test_no_archive_writes_outside_of_the_folder(
    entries: list[tuple[str, bytes, str, int]],
) -> None:
    with TemporaryDirectory() as root:
        folder, archive = Path(root, "folder"), Path(root, "a.tar")
        folder.mkdir()
        with tarfile.open(archive, "w", format=tarfile.PAX_FORMAT) as tar:
            for name, kind, target, mode in entries:
                info = tarfile.TarInfo(name)
                info.type, info.linkname, info.mode = kind, target, mode
                tar.addfile(info)
        with contextlib.suppress(ArchiveRefused):
            unpack_folder(archive, folder)
        assert {path.name for path in Path(root).iterdir()} == {"folder", "a.tar"}
        for path in folder.rglob("*"):
            mode = path.lstat().st_mode
            assert stat.S_ISDIR(mode) or stat.S_ISREG(mode) or stat.S_ISLNK(mode)
            if stat.S_ISLNK(mode):
                inside = os.path.normpath(path.parent / path.readlink())
                assert Path(inside).is_relative_to(folder)
