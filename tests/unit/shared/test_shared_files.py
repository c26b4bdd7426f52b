from __future__ import annotations

import json
from pathlib import Path

from detcloud.shared.files import delete_tree, read_json_object


def test_deleting_never_follows_links_and_opens_closed_directories(tmp_path: Path) -> None:
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


def test_a_file_that_is_no_object_reads_as_nothing(tmp_path: Path) -> None:
    (tmp_path / "list").write_text(json.dumps([1]))
    assert read_json_object(tmp_path / "list") is None
    assert read_json_object(tmp_path / "missing") is None
