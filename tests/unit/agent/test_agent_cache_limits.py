"""Deletion of cached folders: least recently used first, and never a folder in use."""

from __future__ import annotations

import json
import os
from pathlib import Path

from detcloud.agent.cache_limits import BUILD_SECONDS_MAX, CacheLimits, prune_caches
from detcloud.agent.package_cache import held_experiments, remove_experiments

NOW = 1_000_000.0


def kernels(work: Path, owner: str, number: int, size: int, used_at: float) -> Path:
    folder = work / "environments/owners" / owner / "kernels/processes" / str(number)
    folder.mkdir(parents=True)
    (folder / "kernel.so").write_bytes(b"x" * size)
    os.utime(folder, (used_at, used_at))
    return folder


def layer(work: Path, name: str, size: int, used_at: float, *, complete: bool = True) -> Path:
    cache = work / "environments/owners/ada/packages"
    folder = cache / f"build-{name}"
    folder.mkdir(parents=True)
    (folder / "module.py").write_bytes(b"x" * size)
    if complete:
        (cache / name).symlink_to(folder.name)
    os.utime(folder, (used_at, used_at))
    return folder


def test_the_least_recently_used_kernels_are_deleted(tmp_path: Path) -> None:
    old = kernels(tmp_path, "ada", 1, 60, NOW - 2)
    new = kernels(tmp_path, "bob", 1, 60, NOW - 1)
    # 120 bytes exceed the limit of 100: the older 60 bytes are deleted.
    prune_caches(tmp_path, CacheLimits(kernels=100), NOW)
    assert (old.exists(), new.exists()) == (False, True)
    prune_caches(tmp_path, CacheLimits(kernels=60), NOW)
    assert new.exists()


def test_used_kernels_are_kept_and_later_trials_get_an_empty_folder(tmp_path: Path) -> None:
    used = kernels(tmp_path, "ada", 1, 60, NOW)
    record = tmp_path / "allocations/1.1/agent/kernels.json"
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps({"folder": str(used)}))
    prune_caches(tmp_path, CacheLimits(kernels=10), NOW)
    assert used.exists()
    assert list((used.parent / "2").iterdir()) == []
    record.unlink()
    prune_caches(tmp_path, CacheLimits(kernels=10), NOW)
    assert not used.exists()


def test_layers_are_deleted_with_their_links(tmp_path: Path) -> None:
    old, new = layer(tmp_path, "a", 60, NOW - 2), layer(tmp_path, "b", 60, NOW - 1)
    prune_caches(tmp_path, CacheLimits(packages=100), NOW)
    assert (old.exists(), new.exists()) == (False, True)
    assert sorted(path.name for path in new.parent.iterdir()) == ["b", "build-b"]


def test_layers_in_use_are_kept(tmp_path: Path) -> None:
    used = layer(tmp_path, "a", 60, NOW)
    home = tmp_path / "allocations/1.1/home/.python"
    home.mkdir(parents=True)
    (home / "packages").symlink_to(used)
    prune_caches(tmp_path, CacheLimits(packages=10), NOW)
    assert used.exists()


def test_old_remains_of_a_killed_installation_are_deleted(tmp_path: Path) -> None:
    young = layer(tmp_path, "a", 1, NOW - BUILD_SECONDS_MAX + 1, complete=False)
    old = layer(tmp_path, "b", 1, NOW - BUILD_SECONDS_MAX - 1, complete=False)
    prune_caches(tmp_path, CacheLimits(packages=0), NOW)
    assert (young.exists(), old.exists()) == (True, False)


def test_packages_of_experiments_are_listed_and_removed(tmp_path: Path) -> None:
    assert held_experiments(tmp_path) == []
    for number in (12, 3):
        (tmp_path / "experiments" / str(number) / "build-x").mkdir(parents=True)
    assert held_experiments(tmp_path) == [3, 12]
    remove_experiments(tmp_path, [3, 4])
    assert held_experiments(tmp_path) == [12]
