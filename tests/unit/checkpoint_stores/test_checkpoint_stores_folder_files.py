import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from control_plane.checkpoint_stores.folder_files import (
    DEPTH_MAX,
    FolderFiles,
    remove_folder,
)
from detcloud.shared.checkpoint_limits import STAGING_FOLDER
from tests.unit.checkpoint_stores.deep_folders import deep_folder

UUID = "00000000-0000-4000-8000-000000000001"
PARTS = ("3", "7", "1", UUID)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with a checkpoint, next to a folder that must not change."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "precious").write_text("canary")
    folder = tmp_path / "root" / "/".join(PARTS)
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
    (folder / "deep" / "er" / "weights").write_bytes(b"w")
    return tmp_path / "root"


def remove(root: Path, parts: tuple[str, ...] = PARTS, *, prune: bool = False) -> int:
    """Remove a folder and return the number of yields."""
    return sum(1 for _ in remove_folder(root, parts, prune=prune))


def remaining_paths(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*"))


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def precious(root: Path) -> str:
    return (root.parent / "outside" / "precious").read_text()


def test_only_the_folder_and_the_content_are_removed(root: Path) -> None:
    (root / "3/7/1/other").mkdir()
    remove(root)
    assert remaining_paths(root) == ["3", "3/7", "3/7/1", "3/7/1/other"]


def test_pruning_removes_empty_parents_below_the_root(root: Path) -> None:
    remove(root, prune=True)
    assert remaining_paths(root) == []
    assert root.is_dir()


def test_nonempty_parent_is_not_pruned(root: Path) -> None:
    (root / "3/7/2").mkdir()
    remove(root, prune=True)
    assert remaining_paths(root) == ["3", "3/7", "3/7/2"]


def test_missing_folder_is_no_error_and_parents_are_pruned(root: Path) -> None:
    remove(root)
    (root / "3/7/1").rmdir()
    remove(root, prune=True)
    remove(root, prune=True)
    assert remaining_paths(root) == []


def test_missing_root_is_an_error(root: Path) -> None:
    with pytest.raises(FileNotFoundError):
        remove(root / "unmounted")


@pytest.mark.parametrize("place", range(4))
def test_link_in_the_path_is_not_followed(root: Path, place: int) -> None:
    outside = root.parent / "outside"
    outside.joinpath(*PARTS[place + 1 :]).mkdir(parents=True, exist_ok=True)
    target = root.joinpath(*PARTS[: place + 1])
    target.rename(root.parent / "moved")
    target.symlink_to(outside, target_is_directory=True)
    remove(root, prune=True)
    assert precious(root) == "canary"
    assert outside.joinpath(*PARTS[place + 1 :]).is_dir()
    # A link at the checkpoint's own place is removed.
    assert target.is_symlink() == (place < 3)


def test_links_in_a_checkpoint_are_removed_without_targets(root: Path) -> None:
    outside = root.parent / "outside"
    folder = root.joinpath(*PARTS)
    (folder / "up").symlink_to("../../../../..")
    (folder / "deep" / "all").symlink_to(outside, target_is_directory=True)
    (folder / "deep" / "one").symlink_to(outside / "precious")
    (folder / "dangling").symlink_to("nowhere")
    os.link(outside / "precious", folder / "hard")
    os.mkfifo(folder / "pipe")
    remove(root)
    assert not folder.exists()
    assert precious(root) == "canary"


def test_folder_exchanged_for_a_link_is_not_followed(root: Path) -> None:
    checkpoint = root.joinpath(*PARTS)
    names = [f"folder-{number}" for number in range(8)]
    for name in names:
        (checkpoint / name).mkdir()
        (checkpoint / name / "weights").write_bytes(b"w")
    steps = remove_folder(root, PARTS)
    next(steps)
    # The checkpoint was listed, and the removal has begun with one of the entries.
    exchanged = [name for name in names if (checkpoint / name / "weights").exists()]
    for name in exchanged:
        (checkpoint / name).rename(root.parent / name)
        (checkpoint / name).symlink_to(root.parent / "outside", target_is_directory=True)
    assert len(exchanged) >= 7
    for _ in steps:
        pass
    assert not checkpoint.exists()
    assert precious(root) == "canary"


@pytest.mark.parametrize(
    "parts",
    [
        (),
        ("3",),
        ("", "7"),
        ("3", ""),
        ("3", "."),
        ("..", "3"),
        ("3", ".."),
        ("3", "7/.."),
        ("/", "etc"),
        ("3", "7", "1", "..\\.."),
        ("3", "7", "%2e%2e"),
        ("3", "7\0"),
        ("3", "7\n"),
        (".staging", "3"),
    ],
)
def test_rejects_texts_that_name_no_checkpoint_folder(root: Path, parts: tuple[str, ...]) -> None:
    before = remaining_paths(root)
    with pytest.raises(ValueError, match="not the folder of a checkpoint"):
        remove(root, parts)
    assert remaining_paths(root) == before


def test_removal_of_a_checkpoint_removes_unfinished_writes(root: Path) -> None:
    staging = root / STAGING_FOLDER
    staging.mkdir()
    for name in (f"{PARTS[-1]}.0a", f"{PARTS[-1]}.0b", "another.0a", f"{PARTS[-1]}x"):
        (staging / name).write_text("half")
    (staging / f"{PARTS[-1]}.link").symlink_to(root.parent / "outside" / "precious")
    list(FolderFiles(root).remove_folder(PARTS))
    assert {path.name for path in staging.iterdir()} == {"another.0a", f"{PARTS[-1]}x"}
    assert precious(root) == "canary"


def test_removal_yields_after_each_file(root: Path) -> None:
    folder = root.joinpath(*PARTS)
    for n in range(300):
        (folder / f"{n}").touch()
    # A yield for each of the 300 files and the two earlier files.
    assert list(remove_folder(root, PARTS)).count(1) == 302
    assert not folder.exists()


def test_interrupted_removal_can_be_repeated(root: Path) -> None:
    folder = root.joinpath(*PARTS)
    for n in range(200):
        (folder / f"{n}").touch()
    for rests in range(0, 300, 50):
        work: Iterator[int] = remove_folder(root, PARTS)
        for _ in range(rests):
            next(work, None)
    remove(root)
    assert not folder.exists()


@pytest.mark.parametrize("depth", [DEPTH_MAX - 1, DEPTH_MAX, DEPTH_MAX + 1, 3 * DEPTH_MAX, 3000])
def test_nested_folders_are_removed_with_few_descriptors(root: Path, depth: int) -> None:
    with deep_folder(root.joinpath(*PARTS), depth):
        most, before = 0, open_files()
        for _ in remove_folder(root, PARTS, prune=True):
            most = max(most, open_files() - before)
    assert remaining_paths(root) == []
    assert most <= DEPTH_MAX + len(PARTS) + 2


def test_deep_folders_are_listed_without_links(root: Path) -> None:
    folder = root.joinpath(*PARTS)
    with deep_folder(folder, 300):
        (folder / "d" / "link").symlink_to(root.parent / "outside")
        listed = dict(FolderFiles(root).list_files(PARTS))
    deep = "/".join(["d"] * 300)
    assert listed == {"manifest.json": 2, "deep/er/weights": 1, f"{deep}/file": 4}


def test_removal_leaves_no_descriptor_open(root: Path) -> None:
    before = open_files()
    work = remove_folder(root, PARTS)
    next(work)
    assert open_files() > before
    del work
    remove(root)
    assert open_files() == before


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is denied to root")
def test_denied_removal_is_an_error(root: Path) -> None:
    folder = root.joinpath(*PARTS)
    folder.chmod(0o500)
    with pytest.raises(PermissionError):
        remove(root)
    folder.chmod(0o700)
    assert (folder / "manifest.json").exists()


def test_checkpoint_folders_of_a_trial_are_listed(root: Path) -> None:
    files = FolderFiles(root)
    experiment_id, trial_id = int(PARTS[0]), int(PARTS[1])
    (root / PARTS[0] / PARTS[1] / "2" / "b").mkdir(parents=True)
    (root / PARTS[0] / PARTS[1] / "2" / "file").write_text("")
    (root / PARTS[0] / PARTS[1] / "link").symlink_to(root.parent / "outside")
    listed = list(files.list_checkpoints(experiment_id, trial_id))
    assert listed == [(PARTS[2], PARTS[3]), ("2", "b")]
    assert list(files.list_checkpoints(experiment_id, trial_id + 1)) == []
    assert list(FolderFiles(root / "none").list_checkpoints(experiment_id, trial_id)) == []
