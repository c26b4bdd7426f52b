"""Fetching layers before a launch: what is placed, and what a failure costs."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from detcloud.agent.allocation.directory import AllocationDirectory
from detcloud.agent.layer_archives.cluster import ClusterArchives, StoredArchive
from detcloud.agent.layer_archives.pack import pack_layer
from detcloud.agent.layer_archives.trial_layers import (
    TrialLayers,
    UsedLayer,
    find_used_layer,
    place_layer,
)
from detcloud.agent.package_cache import DECLARED, HOOK
from detcloud.launch.packages.layers import find_layer
from detcloud.shared.http import Unreachable

KEY = "a" * 64


@dataclass
class LocalArchives(ClusterArchives):
    """Archives in memory, as a cluster would send them."""

    content: bytes = b""
    stored: list[StoredArchive] = field(default_factory=list)
    on_download: Any = None

    def list_archives(self, allocation: str) -> list[StoredArchive] | None:
        return self.stored

    def download(self, archive: StoredArchive, file: Any) -> None:
        if self.on_download is not None:
            self.on_download()
        file.write(self.content)


@dataclass
class Fixture:
    """One allocation whose experiment has one archive."""

    folder: Path
    is_wanted: bool = True
    journal: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        layer = self.folder / "other/build-one"
        layer.mkdir(parents=True)
        (layer / "module.py").write_text("X = 1")
        packed = pack_layer(layer.parent, layer.name, self.folder / "archive")
        content = (self.folder / "archive").read_bytes()
        stored = StoredArchive(HOOK, KEY, packed["sha256"], packed["size"], "/url")
        self.archives = LocalArchives(content, [stored])
        self.cache = self.folder / "cache"
        directory = AllocationDirectory(self.folder / "allocations", "1.1")
        directory.create()
        self.transfers = self.folder / "transfers"
        self.layers = TrialLayers(
            self.archives,
            directory,
            self.transfers,
            "1",
            lambda: self.is_wanted,
            self.journal.append,
        )

    def log(self) -> str:
        return self.layers.directory.log.read_text()

    def leftovers(self) -> list[Path]:
        return list(self.transfers.iterdir()) if self.transfers.exists() else []


@pytest.fixture
def one(tmp_path: Path) -> Fixture:
    return Fixture(tmp_path)


def test_missing_layer_is_fetched_once(one: Fixture) -> None:
    one.layers.obtain(DECLARED, one.cache, KEY)
    assert find_layer(one.cache, KEY) is None
    one.layers.obtain(HOOK, one.cache, KEY)
    layer = find_layer(one.cache, KEY)
    assert layer is not None
    assert (layer / "module.py").read_text() == "X = 1"
    assert "startup-hook.sh: packages fetched in" in one.log()
    one.archives.content = b""
    one.layers.obtain(HOOK, one.cache, KEY)
    assert one.journal == []
    assert one.leftovers() == []


def test_all_layers_of_a_kind_are_fetched_without_a_key(one: Fixture) -> None:
    one.layers.obtain(HOOK, one.cache, "")
    assert find_layer(one.cache, KEY) is not None


@pytest.mark.parametrize("content", [b"", b"short", b"x" * 10_000])
def test_damaged_archive_is_a_line_of_the_log(one: Fixture, content: bytes) -> None:
    one.archives.content = content
    one.layers.obtain(HOOK, one.cache, KEY)
    assert find_layer(one.cache, KEY) is None
    assert "could not be fetched and are installed: the archive has" in one.log()
    assert len(one.journal) == 1
    assert one.leftovers() == []


def test_archive_with_the_right_digest_may_still_be_hostile(one: Fixture) -> None:
    content = b"no archive"
    digest = hashlib.sha256(content).hexdigest()
    one.archives.content = content
    one.archives.stored = [StoredArchive(HOOK, KEY, digest, len(content), "/url")]
    one.layers.obtain(HOOK, one.cache, KEY)
    assert "the archive is damaged" in one.log()
    assert one.leftovers() == []


def test_unreachable_store_is_a_line_of_the_log(one: Fixture) -> None:
    def fail() -> None:
        raise Unreachable("no answer")

    one.archives.on_download = fail
    one.layers.obtain(HOOK, one.cache, KEY)
    assert "could not be fetched and are installed: no answer" in one.log()


def test_stop_of_the_trial_ends_the_download(one: Fixture) -> None:
    def stop() -> None:
        one.is_wanted = False
        one.layers._checked_at = 0.0

    one.archives.on_download = stop
    one.layers.obtain(HOOK, one.cache, KEY)
    assert "not fetched, because the trial was asked to stop" in one.log()
    assert find_layer(one.cache, KEY) is None
    assert one.leftovers() == []


def test_cache_that_is_a_link_is_not_written(one: Fixture) -> None:
    outside = one.folder / "outside"
    outside.mkdir()
    one.cache.symlink_to(outside)
    one.layers.obtain(HOOK, one.cache, KEY)
    assert "could not be fetched" in one.log()
    assert list(outside.iterdir()) == []


def test_installed_layer_wins_over_a_fetched_layer(one: Fixture) -> None:
    for name in ("build-b", "build-c"):
        (one.folder / name).mkdir()
        place_layer(one.folder / name, one.cache, KEY)
    assert (one.cache / KEY).readlink() == Path("build-b")
    assert not (one.cache / "build-c").exists()


@pytest.mark.parametrize("target", ["..", "/etc", "build-x/../..", "other"])
def test_link_of_a_hostile_trial_names_no_layer(one: Fixture, target: str) -> None:
    one.cache.mkdir()
    (one.cache / KEY).symlink_to(target)
    overlay = one.layers.directory.overlay
    overlay.mkdir()
    (overlay / "packages").symlink_to(target)
    for key in (KEY, ""):
        assert find_used_layer(UsedLayer(HOOK, one.cache, key), overlay) is None


def test_overlay_names_the_layer_of_a_container(one: Fixture) -> None:
    (one.folder / "build-b").mkdir()
    place_layer(one.folder / "build-b", one.cache, KEY)
    overlay = one.layers.directory.overlay
    overlay.mkdir()
    (overlay / "packages").symlink_to(one.cache / "build-b")
    assert find_used_layer(UsedLayer(DECLARED, one.cache, ""), overlay) == (KEY, "build-b")
