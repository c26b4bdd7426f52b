"""The rules of a kept folder: mounts below the folder, and `.detignore`."""

import sys
from pathlib import Path

import pytest

from detcloud.launch.folder_rules import find_mounts, read_rules

MOUNTINFO = rb"""24 30 0:22 / /proc rw,nosuid shared:13 - proc proc rw
36 35 98:0 /code /run/code rw,noatime master:1 - ext3 /dev/root rw
37 36 98:0 /data /run/code/data rw,noatime master:1 - ext3 /dev/root rw
38 36 98:0 /my\040data /run/code/my\040data/\134x rw - ext3 /dev/root rw
39 36 98:0 /data /run/code-of-others rw - ext3 /dev/root rw
broken
"""


def test_mounts_below_the_folder_are_found() -> None:
    assert find_mounts(Path("/run/code"), MOUNTINFO) == {"data", "my data/\\x"}


def test_everything_is_kept_without_detignore(tmp_path: Path) -> None:
    rules, problem = read_rules(tmp_path)
    assert (rules.keep("data/"), rules.keep(".git/"), problem) == (True, True, "")


def test_detignore_is_obeyed(tmp_path: Path) -> None:
    (tmp_path / ".detignore").write_text("data/\n*.pt\n")
    rules, problem = read_rules(tmp_path)
    assert problem == ""
    kept = [name for name in ("data/", "data", "a.pt", "src/b.pt", "a.py") if rules.keep(name)]
    assert kept == ["data", "a.py"]


def test_invalid_detignore_keeps_everything_and_is_reported(tmp_path: Path) -> None:
    (tmp_path / ".detignore").write_text("[[:alpha:]]\n")
    rules, problem = read_rules(tmp_path)
    assert rules.keep("a")
    assert "'[[:alpha:]]' is not a pattern" in problem


def test_missing_package_keeps_everything_and_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".detignore").write_text("data/\n")
    monkeypatch.delitem(sys.modules, "detcloud.shared.detignore", raising=False)
    monkeypatch.setitem(sys.modules, "pathspec", None)
    rules, problem = read_rules(tmp_path)
    assert rules.keep("data/")
    assert problem == "the package pathspec is not installed"
