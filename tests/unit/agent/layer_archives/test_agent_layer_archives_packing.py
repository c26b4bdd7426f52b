"""Archives of package layers: packing, unpacking, and hostile content."""

from __future__ import annotations

import gzip
import json
import os
import stat
from pathlib import Path

import pytest

from detcloud.agent.layer_archives import pack, unpack
from detcloud.agent.layer_archives.pack import pack_layer, walk
from detcloud.agent.layer_archives.records import END, MAGIC, LayerRefused
from detcloud.agent.layer_archives.unpack import unpack_layer

LAYER = "build-one"


@pytest.fixture
def layer(tmp_path: Path) -> Path:
    """Create and return a layer with a module, a program and a link."""
    folder = tmp_path / "cache" / LAYER
    (folder / "lib/a").mkdir(parents=True)
    (folder / "lib/a/module.py").write_text("X = 1\n")
    os.utime(folder / "lib/a/module.py", (1_700_000_000, 1_700_000_000))
    (folder / "lib/link").symlink_to("a/module.py")
    (folder / "bin").mkdir()
    (folder / "bin/tool").write_text("#!/bin/sh\n")
    (folder / "bin/tool").chmod(0o4755)
    return folder


def pack_archive(layer: Path) -> tuple[Path, int]:
    """Pack a layer; return the archive and the number of omitted entries."""
    archive = layer.parents[1] / "archive"
    result = pack_layer(layer.parent, layer.name, archive)
    assert result["size"] == archive.stat().st_size
    return archive, result["omitted"]


def write_archive(path: Path, *entries: list[object] | bytes, end: bytes = END) -> Path:
    """Write an archive of raw entries."""
    lines = [
        entry if isinstance(entry, bytes) else json.dumps(entry).encode() + b"\n"
        for entry in entries
    ]
    path.write_bytes(gzip.compress(MAGIC + b"".join(lines) + end))
    return path


def test_unpacked_layer_equals_the_packed_layer(layer: Path, tmp_path: Path) -> None:
    archive, omitted = pack_archive(layer)
    unpack_layer(archive, tmp_path / "out")
    module = tmp_path / "out/lib/a/module.py"
    assert omitted == 0
    assert module.read_text() == "X = 1\n"
    # Compiled files record the time of the source file.
    assert module.stat().st_mtime == 1_700_000_000
    assert (tmp_path / "out/lib/link").readlink() == Path("a/module.py")
    # The set-id bit is removed: 0o4755 & 0o755 = 0o755.
    assert stat.S_IMODE((tmp_path / "out/bin/tool").stat().st_mode) == 0o755


def test_links_out_of_the_layer_and_special_files_are_omitted(layer: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (layer / "absolute").symlink_to(tmp_path / "secret")
    (layer / "lib/above").symlink_to("../../../secret")
    os.mkfifo(layer / "pipe")
    archive, omitted = pack_archive(layer)
    assert omitted == 3
    assert b"secret" not in gzip.decompress(archive.read_bytes())


def test_folder_that_becomes_a_link_is_not_followed(layer: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    top = os.open(layer, os.O_RDONLY)
    entries = walk(top, "")
    assert [next(entries)[0] for _ in range(3)] == ["bin", "bin/tool", "lib"]
    (layer / "lib").rename(layer / "moved")
    (layer / "lib").symlink_to(outside)
    with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
        next(entries)
    os.close(top)


def test_layer_that_is_a_link_is_not_packed(layer: Path, tmp_path: Path) -> None:
    (layer.parent / "build-two").symlink_to(layer)
    with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
        pack_layer(layer.parent, "build-two", tmp_path / "archive")
    assert not (tmp_path / "archive").exists()


def test_existing_archive_is_kept_and_not_overwritten(layer: Path, tmp_path: Path) -> None:
    (tmp_path / "archive").write_bytes(b"earlier")
    with pytest.raises(FileExistsError):
        pack_layer(layer.parent, layer.name, tmp_path / "archive")
    assert (tmp_path / "archive").read_bytes() == b"earlier"


def test_packing_limits_leave_no_archive(
    layer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("ENTRIES_MAX", 2), ("CONTENT_BYTES_MAX", 3), ("ARCHIVE_BYTES_MAX", 8)):
        with monkeypatch.context() as patch:
            patch.setattr(pack, name, value)
            with pytest.raises(LayerRefused, match="more than"):
                pack_layer(layer.parent, layer.name, tmp_path / "archive")
        assert not (tmp_path / "archive").exists()


@pytest.mark.parametrize(
    "entries",
    [
        [["file", "../evil", 0o644, 0, 0]],
        [["file", "/evil", 0o644, 0, 0]],
        [["file", "a/./evil", 0o644, 0, 0]],
        [["file", "x/" * 70 + "evil", 0o644, 0, 0]],
        [["file", 7, 0o644, 0, 0]],
        [["file", "evil", 0o644, 0, -1]],
        [["file", "evil", 0o644, 0, 1 << 50]],
        [["link", "evil", "/etc"]],
        [["link", "evil", "../etc"]],
        # Each link alone stays inside; both together lead to the folder above.
        [["folder", "d", 0o755], ["link", "d/s", ".."], ["link", "d/up", "s/../.."]],
        [["device", "evil", 1, 3]],
        [b"[" * 5000 + b"\n"],
        [b"x" * (1 << 20)],
        [b"\xff\n"],
    ],
)
def test_hostile_archives_are_refused(tmp_path: Path, entries: list[list[object] | bytes]) -> None:
    archive = write_archive(tmp_path / "archive", *entries)
    private = tmp_path / "private"
    private.mkdir()
    with pytest.raises(LayerRefused):
        unpack_layer(archive, private / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["archive", "private"]
    assert [path.name for path in private.iterdir()] == ["out"]


def test_file_below_a_link_is_not_written(tmp_path: Path) -> None:
    entries: list[list[object]] = [["link", "a", "b"], ["file", "a/evil", 0o644, 0, 0]]
    with pytest.raises(FileNotFoundError):
        unpack_layer(write_archive(tmp_path / "archive", *entries), tmp_path / "out")


def test_cut_archives_are_refused(layer: Path, tmp_path: Path) -> None:
    content = pack_archive(layer)[0].read_bytes()
    for number, size in enumerate((0, 1, len(content) // 2, len(content) - 12)):
        cut = tmp_path / f"cut-{number}"
        cut.write_bytes(content[:size])
        with pytest.raises(LayerRefused):
            unpack_layer(cut, tmp_path / f"out-{number}")
    with pytest.raises(LayerRefused):
        unpack_layer(write_archive(tmp_path / "no-end", end=b""), tmp_path / "out")


def test_bombs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = 1 << 20
    bomb = write_archive(
        tmp_path / "archive", ["file", "a", 0o644, 0, size], bytes(size), ["folder", "b", 0o755]
    )
    for name, value in (("CONTENT_BYTES_MAX", size - 1), ("ENTRIES_MAX", 1)):
        with monkeypatch.context() as patch:
            patch.setattr(unpack, name, value)
            with pytest.raises(LayerRefused, match="more than"):
                unpack_layer(bomb, tmp_path / name)
