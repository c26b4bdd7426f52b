"""Package layers are fetched before a launch; a failure becomes a line of the trial log."""

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
    """Archives in memory in place of the cluster; a download calls `on_download` first."""

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
    """Allocation 1.1 with a single stored archive; `is_wanted` is False after a stop request."""

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
            check_seconds=0.0,
        )

    def log(self) -> str:
        return self.layers.directory.log.read_text()

    def leftovers(self) -> list[Path]:
        return list(self.transfers.iterdir()) if self.transfers.exists() else []


@pytest.fixture
def trial(tmp_path: Path) -> Fixture:
    return Fixture(tmp_path)


def test_missing_layer_is_fetched_once(trial: Fixture) -> None:
    trial.layers.obtain(DECLARED, trial.cache, KEY)
    assert find_layer(trial.cache, KEY) is None
    trial.layers.obtain(HOOK, trial.cache, KEY)
    layer = find_layer(trial.cache, KEY)
    assert layer is not None
    assert (layer / "module.py").read_text() == "X = 1"
    assert "startup-hook.sh: packages fetched in" in trial.log()
    trial.archives.content = b""
    trial.layers.obtain(HOOK, trial.cache, KEY)
    assert trial.journal == []
    assert trial.leftovers() == []


def test_all_layers_of_a_kind_are_fetched_without_a_key(trial: Fixture) -> None:
    trial.layers.obtain(HOOK, trial.cache, "")
    assert find_layer(trial.cache, KEY) is not None


@pytest.mark.parametrize("content", [b"", b"short", b"x" * 10_000])
def test_damaged_archive_is_a_line_of_the_log(trial: Fixture, content: bytes) -> None:
    trial.archives.content = content
    trial.layers.obtain(HOOK, trial.cache, KEY)
    assert find_layer(trial.cache, KEY) is None
    assert "could not be fetched and are installed: the archive has" in trial.log()
    assert len(trial.journal) == 1
    assert trial.leftovers() == []


def test_archive_with_the_right_digest_may_still_be_hostile(trial: Fixture) -> None:
    content = b"no archive"
    digest = hashlib.sha256(content).hexdigest()
    trial.archives.content = content
    trial.archives.stored = [StoredArchive(HOOK, KEY, digest, len(content), "/url")]
    trial.layers.obtain(HOOK, trial.cache, KEY)
    assert "the archive is damaged" in trial.log()
    assert trial.leftovers() == []


def test_unreachable_store_is_a_line_of_the_log(trial: Fixture) -> None:
    def fail() -> None:
        raise Unreachable("no answer")

    trial.archives.on_download = fail
    trial.layers.obtain(HOOK, trial.cache, KEY)
    assert "could not be fetched and are installed: no answer" in trial.log()


def test_stop_of_the_trial_ends_the_download(trial: Fixture) -> None:
    def stop() -> None:
        trial.is_wanted = False

    trial.archives.on_download = stop
    trial.layers.obtain(HOOK, trial.cache, KEY)
    assert "not fetched, because the trial was asked to stop" in trial.log()
    assert find_layer(trial.cache, KEY) is None
    assert trial.leftovers() == []


def test_cache_that_is_a_link_is_not_written(trial: Fixture) -> None:
    outside = trial.folder / "outside"
    outside.mkdir()
    trial.cache.symlink_to(outside)
    trial.layers.obtain(HOOK, trial.cache, KEY)
    assert "could not be fetched" in trial.log()
    assert list(outside.iterdir()) == []


def test_first_placed_layer_is_kept(trial: Fixture) -> None:
    for name in ("build-b", "build-c"):
        (trial.folder / name).mkdir()
        place_layer(trial.folder / name, trial.cache, KEY)
    assert (trial.cache / KEY).readlink() == Path("build-b")
    assert not (trial.cache / "build-c").exists()


@pytest.mark.parametrize("target", ["..", "/etc", "build-x/../..", "other"])
def test_link_of_a_hostile_trial_names_no_layer(trial: Fixture, target: str) -> None:
    trial.cache.mkdir()
    (trial.cache / KEY).symlink_to(target)
    overlay = trial.layers.directory.overlay
    overlay.mkdir()
    (overlay / "packages").symlink_to(target)
    for key in (KEY, ""):
        assert find_used_layer(UsedLayer(HOOK, trial.cache, key), overlay) is None


def test_overlay_names_the_layer_of_a_container(trial: Fixture) -> None:
    (trial.folder / "build-b").mkdir()
    place_layer(trial.folder / "build-b", trial.cache, KEY)
    overlay = trial.layers.directory.overlay
    overlay.mkdir()
    (overlay / "packages").symlink_to(trial.cache / "build-b")
    assert find_used_layer(UsedLayer(DECLARED, trial.cache, ""), overlay) == (KEY, "build-b")
