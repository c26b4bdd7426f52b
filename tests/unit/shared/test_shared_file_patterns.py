"""Patterns that choose files: the same files as Python's glob finds, with what is in folders."""

import time
from glob import glob
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detcloud.shared.file_patterns import PATTERN_LENGTH_MAX, matches_any, matches_pattern

FILES = (
    "a.pt",
    "b.txt",
    ".hidden",
    "dir/a.pt",
    "dir/c",
    "dir/deep/a.pt",
    "dir/deep/.b",
    ".secret/a.pt",
    "dira/x[1].pt",
)
PATTERNS = (
    "*",
    "*.pt",
    "**",
    "**/*",
    "**/*.pt",
    "**/a.pt",
    "dir",
    "dir/",
    "dir/*",
    "dir/**",
    "dir/**/*.pt",
    "d*/*",
    "*/deep",
    "**/deep/**",
    ".*",
    "[ab].*",
    "[!a].*",
    "dira/x[[]1].pt",
    "?.pt",
    "nothing",
    "",
    "**/**/a.pt",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("files")
    for name in FILES:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return root


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_chooses_what_glob_finds(folder: Path, pattern: str) -> None:
    chosen = {name for name in FILES if matches_pattern(name, pattern)}
    assert chosen == found_by_glob(folder, pattern)


def test_what_is_in_a_folder_is_no_file_of_its_name() -> None:
    assert not matches_pattern("a.pt", "a.pt/**")
    assert matches_pattern("a.pt/b", "a.pt/**")


def test_drawn_patterns_choose_what_glob_finds(folder: Path) -> None:
    part = st.sampled_from(["*", "**", "a.pt", "dir", "deep", "d*", "?.pt", ".*", "[a-d]*", "x"])

    @settings(max_examples=300, deadline=None, derandomize=True)
    @given(st.lists(part, min_size=1, max_size=4))
    def check(parts: list[str]) -> None:
        pattern = "/".join(parts)
        chosen = {name for name in FILES if matches_pattern(name, pattern)}
        assert chosen == found_by_glob(folder, pattern)

    check()


def found_by_glob(folder: Path, pattern: str) -> set[str]:
    """The files that glob finds, and those in the folders that it finds."""
    paths = glob(pattern, root_dir=folder, recursive=True)  # noqa: PTH207 - the rules are its own.
    # With `**` at its end glob also finds files as if they were folders.
    found = {Path(path) for path in paths if path and not is_file_as_folder(folder, path)}
    within = {Path(name) for name in FILES}
    return {str(name) for name in within if found & {name, *name.parents} - {Path()}}


def is_file_as_folder(folder: Path, path: str) -> bool:
    return path.endswith("/") and (folder / path).is_file()


def test_hostile_patterns_take_no_longer_than_their_length_allows() -> None:
    path = "/".join(["a" * 100] * 40)
    deep = "/".join(["**", "*a*a*a*a*a*b"] * (PATTERN_LENGTH_MAX // 16))
    began = time.thread_time()
    assert not matches_any(path, [deep, "*a" * (PATTERN_LENGTH_MAX // 2) + "b"])
    # A matcher that tries all ways takes years.
    assert time.thread_time() - began < 20
