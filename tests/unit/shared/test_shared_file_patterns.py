"""File patterns match the files that Python's glob finds, and all files in matching folders."""

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
def test_patterns_match_like_glob(folder: Path, pattern: str) -> None:
    chosen = {name for name in FILES if matches_pattern(name, pattern)}
    assert chosen == found_by_glob(folder, pattern)


def test_recursive_pattern_does_not_match_a_file_named_like_the_folder() -> None:
    assert not matches_pattern("a.pt", "a.pt/**")
    assert matches_pattern("a.pt/b", "a.pt/**")


def test_random_patterns_match_like_glob(folder: Path) -> None:
    part = st.sampled_from(["*", "**", "a.pt", "dir", "deep", "d*", "?.pt", ".*", "[a-d]*", "x"])

    @settings(max_examples=300, deadline=None, derandomize=True)
    @given(st.lists(part, min_size=1, max_size=4))
    def check(parts: list[str]) -> None:
        pattern = "/".join(parts)
        chosen = {name for name in FILES if matches_pattern(name, pattern)}
        assert chosen == found_by_glob(folder, pattern)

    check()


def found_by_glob(folder: Path, pattern: str) -> set[str]:
    """Return the files that glob finds, and the files in folders that glob finds."""
    paths = glob(pattern, root_dir=folder, recursive=True)  # noqa: PTH207 - compares with glob.
    # For a pattern with `**` at the end, glob also lists files as folders.
    matches = {Path(path) for path in paths if path and not is_file_as_folder(folder, path)}
    within = {Path(name) for name in FILES}
    return {str(name) for name in within if matches & {name, *name.parents} - {Path()}}


def is_file_as_folder(folder: Path, path: str) -> bool:
    return path.endswith("/") and (folder / path).is_file()


def test_hostile_patterns_take_bounded_time() -> None:
    path = "/".join(["a" * 100] * 40)
    deep = "/".join(["**", "*a*a*a*a*a*b"] * (PATTERN_LENGTH_MAX // 16))
    began = time.thread_time()
    assert not matches_any(path, [deep, "*a" * (PATTERN_LENGTH_MAX // 2) + "b"])
    # A backtracking matcher would take years.
    assert time.thread_time() - began < 20
