"""The downloads of a hook in containers stay on the machine, and go to other machines."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from detcloud.agent.allocation.directory import AllocationDirectory
from detcloud.agent.assignment.assignment import Assignment
from detcloud.agent.assignment.hook_downloads import download_variables, hook_downloads
from detcloud.agent.assignment.startup_hook import HOOK_FILE
from detcloud.agent.layer_archives.trial_layers import UsedLayer, find_used_layer
from detcloud.agent.package_cache import HOOK, held_experiments, remove_experiments

IMAGE = "org/trial:1"


@dataclass
class Layers:
    """Layers that the cluster has, as files by name; `obtained` are the requests."""

    stored: Mapping[str, bytes] = field(default_factory=dict)
    obtained: list[tuple[str, Path, str]] = field(default_factory=list)

    def obtain(self, kind: str, cache: Path, key: str) -> None:
        self.obtained.append((kind, cache, key))
        if self.stored and not (cache / key).exists():
            folder = cache / "build-fetched"
            folder.mkdir(parents=True)
            for name, content in self.stored.items():
                (folder / name).write_bytes(content)
            (cache / key).symlink_to(folder.name)


def assignment(
    root: Path, experiment: int = 7, hook: str | None = "pip install x\n", **fields: Any
) -> Assignment:
    directory = AllocationDirectory(root / "allocations", f"{experiment}.1")
    directory.create()
    directory.code.mkdir(exist_ok=True)
    if hook is not None:
        (directory.code / HOOK_FILE).write_text(hook)
    given = {"code_sha256": "c" * 64, **fields}
    return Assignment(directory, {"experiment_id": experiment}, (), 1, 100, **given)


def test_trial_without_a_hook_has_no_folder(tmp_path: Path) -> None:
    given = assignment(tmp_path, hook=None)
    folder = hook_downloads(given, IMAGE)
    assert folder is None
    assert download_variables(folder, given) == {}
    assert held_experiments(given.directory.environments) == []


def test_runs_of_an_experiment_share_a_folder(tmp_path: Path) -> None:
    given = assignment(tmp_path)
    first = hook_downloads(given, IMAGE)
    assert first is not None
    (first / "pip").mkdir()
    assert hook_downloads(given, IMAGE) == first
    assert (first / "pip").is_dir()
    assert download_variables(first, given) == {
        "PIP_CACHE_DIR": f"{first}/pip",
        "UV_CACHE_DIR": f"{first}/uv",
    }
    # The engine refuses mounts whose path contains a link.
    assert first.resolve() == first
    assert first.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    "other",
    [
        {"experiment": 8},
        {"hook": "pip install y\n"},
        {"code_sha256": "d" * 64},
        {"packages": {"installer": "pip", "lines": ["x"]}},
    ],
)
def test_other_experiments_hooks_codes_and_packages_have_other_folders(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    first = hook_downloads(assignment(tmp_path), IMAGE)
    assert hook_downloads(assignment(tmp_path, **other), IMAGE) != first


def test_other_images_have_other_folders(tmp_path: Path) -> None:
    given = assignment(tmp_path)
    assert hook_downloads(given, IMAGE) != hook_downloads(given, "org/trial:2")


def test_folder_ends_with_the_experiment(tmp_path: Path) -> None:
    given = assignment(tmp_path)
    folder = hook_downloads(given, IMAGE)
    assert folder is not None
    environments = given.directory.environments
    assert held_experiments(environments) == [7]
    remove_experiments(environments, [7])
    assert not folder.exists()


def test_downloads_of_another_machine_are_used(tmp_path: Path) -> None:
    layers: Any = Layers({"wheel": b"content"})
    folder = hook_downloads(assignment(tmp_path, layers=layers), IMAGE)
    assert folder is not None
    assert (folder / "wheel").read_bytes() == b"content"
    ((kind, cache, key),) = layers.obtained
    assert kind == HOOK
    # The folder can be archived for further machines.
    found = find_used_layer(UsedLayer(kind, cache, key), tmp_path / "overlay")
    assert found == (key, folder.name)


def test_new_folder_can_be_archived(tmp_path: Path) -> None:
    layers: Any = Layers()
    folder = hook_downloads(assignment(tmp_path, layers=layers), IMAGE)
    assert folder is not None
    ((kind, cache, key),) = layers.obtained
    assert find_used_layer(UsedLayer(kind, cache, key), tmp_path) == (key, folder.name)


def test_link_to_a_deleted_folder_is_replaced(tmp_path: Path) -> None:
    given = assignment(tmp_path)
    folder = hook_downloads(given, IMAGE)
    assert folder is not None
    folder.rmdir()
    again = hook_downloads(given, IMAGE)
    assert again is not None
    assert again.is_dir()
    assert again != folder


@pytest.mark.parametrize("name", ["PIP_CACHE_DIR", "UV_CACHE_DIR"])
def test_variable_of_the_user_is_kept(tmp_path: Path, name: str) -> None:
    given = assignment(tmp_path, variables={name: "/mine"})
    variables = download_variables(hook_downloads(given, IMAGE), given)
    assert set(variables) == {"PIP_CACHE_DIR", "UV_CACHE_DIR"} - {name}


@pytest.mark.skipif(os.getuid() != 0, reason="only root may give files away")
def test_folder_belongs_to_the_user_of_the_container(tmp_path: Path) -> None:
    given = assignment(tmp_path)
    given.directory.owner = (1000, 1001)
    folder = hook_downloads(given, IMAGE)
    assert folder is not None
    assert (folder.stat().st_uid, folder.stat().st_gid) == (1000, 1001)
