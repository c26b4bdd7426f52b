"""Layers: copies of an overlay's packages for later overlays."""

from __future__ import annotations

from pathlib import Path

import pytest

from detcloud.launch.packages.layers import fill_overlay, find_layer, store_layer
from tests.unit.core.full_disk import files_of_at_most

VERSION = "3.11"
PACKAGES = f"lib/python{VERSION}/site-packages"


def overlay(folder: Path) -> Path:
    """Make an overlay with the package `a`, a program of `a` and an editable package."""
    packages = folder / PACKAGES
    for name in ("a/sub", "a-1.dist-info", "edited-1.dist-info"):
        (packages / name).mkdir(parents=True)
    (packages / "a/sub/module.py").write_text("X = 1\n")
    (packages / "detcloud-layers.pth").write_text("")
    (packages / "__editable__.edited-1.pth").write_text("/code\n")
    origin = '{"url": "file:///code", "dir_info": {"editable": true}}'
    (packages / "edited-1.dist-info/direct_url.json").write_text(origin)
    (packages / "edited-1.dist-info/RECORD").write_text("__editable__.edited-1.pth,,\n")
    (folder / "bin").mkdir()
    (folder / "bin/python").symlink_to("/usr/bin/python3")
    (folder / "bin/a").write_text("#!/bin/sh\n")
    (folder / "hook-commands.jsonl").write_text("{}\n")
    return folder


def test_a_layer_has_the_packages_and_programs_of_the_overlay(tmp_path: Path) -> None:
    source = overlay(tmp_path / "one")
    cache = tmp_path / "cache"
    assert store_layer(source, VERSION, cache, "key")
    layer = find_layer(cache, "key")
    assert layer is not None
    assert sorted(path.name for path in (layer / PACKAGES).iterdir()) == ["a", "a-1.dist-info"]
    assert [path.name for path in (layer / "bin").iterdir()] == ["a"]
    assert not store_layer(source, VERSION, cache, "key")
    target = tmp_path / "two"
    (target / PACKAGES).mkdir(parents=True)
    (target / "bin").mkdir()
    fill_overlay(target, VERSION, layer)
    module = target / PACKAGES / "a/sub/module.py"
    assert module.read_text() == "X = 1\n"
    # An installer that removes a file of the overlay leaves the layer's.
    module.unlink()
    assert (layer / PACKAGES / "a/sub/module.py").read_text() == "X = 1\n"
    assert (target / "hook-commands.jsonl").is_file()


def test_an_overlay_without_packages_leaves_no_layer(tmp_path: Path) -> None:
    (tmp_path / "one" / PACKAGES).mkdir(parents=True)
    assert not store_layer(tmp_path / "one", VERSION, tmp_path / "cache", "key")
    assert not (tmp_path / "cache").exists()


def test_a_full_disk_leaves_no_partial_layer(tmp_path: Path) -> None:
    source = overlay(tmp_path / "one")
    # Scripts of Python are rewritten; all other files are links.
    (source / "bin/script").write_text(f"#!{source}/bin/python\n" + "#" * 2000)
    with pytest.raises(OSError, match="File too large"), files_of_at_most(1000):
        store_layer(source, VERSION, tmp_path / "cache", "key")
    assert list((tmp_path / "cache").iterdir()) == []
