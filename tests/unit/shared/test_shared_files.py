from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from detcloud.shared.files import (
    _open_own_folder,
    delete_tree,
    read_json_object,
    read_regular_file,
)


def test_delete_tree_follows_no_links_and_opens_closed_directories(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    tree = tmp_path / "tree"
    (tree / "closed").mkdir(parents=True)
    (tree / "closed/file").touch()
    (tree / "closed").chmod(0)
    (tree / "link").symlink_to(kept)
    (tmp_path / "alias").symlink_to(kept)
    delete_tree(tree)
    delete_tree(tmp_path / "alias")
    assert not tree.exists()
    assert not (tmp_path / "alias").is_symlink()
    assert (kept / "file").exists()


def test_read_json_object_returns_none_without_an_object(tmp_path: Path) -> None:
    (tmp_path / "list").write_text(json.dumps([1]))
    assert read_json_object(tmp_path / "list") is None
    assert read_json_object(tmp_path / "missing") is None


@pytest.mark.parametrize("depth", [1_200, 5_000])
def test_delete_tree_deletes_deep_trees(tmp_path: Path, depth: int) -> None:
    # 1,200 names of 9 characters are 12,000 bytes, too long for a path.
    tree = tmp_path / "tree"
    tree.mkdir()
    folder = os.open(tree, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("deep-name", dir_fd=folder)
        inner = os.open("deep-name", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=folder))
    os.close(folder)
    delete_tree(tree)
    assert list(tmp_path.iterdir()) == []


def test_read_regular_file_ignores_pipes_folders_and_links(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    contents = [
        read_regular_file(tmp_path / name, 3) for name in ("pipe", "folder", "link", "file")
    ]
    assert contents == [None, None, None, b"123"]
    assert read_regular_file(tmp_path / "link", follows_links=True) == b"12345"
    assert read_json_object(tmp_path / "pipe") is None


def test_deletion_keeps_the_mode_of_a_links_target(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir(mode=0o755)
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "link").symlink_to(target)

    # A trial that replaces a folder by a link after the deletion has looked at the folder.
    parent = os.open(folder, os.O_RDONLY)
    with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
        _open_own_folder("link", parent)
    os.close(parent)
    assert stat.S_IMODE(target.stat().st_mode) == 0o755
