"""Recognition of install commands in a hook, and of commands for every run."""

from __future__ import annotations

from pathlib import Path

import pytest

from detcloud.launch.packages.hook_pip import install_words, is_of_one_run


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["python", "-m", "pip", "install", "a"], ["a"]),
        (["/o/bin/python", "/o/bin/pip", "install", "-q", "a"], ["-q", "a"]),
        (["/o/bin/python", "/o/bin/pip3.11", "install", "a"], ["a"]),
        (["python", "-m", "pip", "uninstall", "a"], None),
        (["python", "-m", "pip"], None),
        (["python", "-c", "pip install"], None),
        (["python", "train.py", "install"], None),
        (["python"], None),
    ],
)
def test_pip_install_commands_are_recognized(argv: list[str], words: list[str] | None) -> None:
    assert install_words(argv) == words


def test_installations_into_the_run_folder_are_never_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plain.txt").write_text("numpy>=2\n# -e is an option\n")
    Path("edited.txt").write_text("numpy\n-e .\n")
    assert not is_of_one_run(["-q", "a", "--extra-index-url", "http://x"])
    assert not is_of_one_run(["-r", "plain.txt"])
    for words in (["-e", "."], ["--target=lib", "a"], ["-t", "lib", "a"], ["--prefix", "p", "a"]):
        assert is_of_one_run(words)
    assert is_of_one_run(["-r", "edited.txt"])
    assert is_of_one_run(["--requirement", "gone.txt"])
