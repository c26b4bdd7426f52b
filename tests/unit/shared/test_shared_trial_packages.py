"""Packages in a trial's home: found, installed once for several programs, or refused."""

from __future__ import annotations

import sys
import threading
from importlib import metadata
from pathlib import Path

import pytest

from detcloud.launch.ssh.packages import ASYNCSSH
from detcloud.shared.trial_packages import PackageMissing, TrialPackage

# A `python -m pip install --target FOLDER` that counts its runs and installs a module.
PIP = """#!/bin/sh
echo run >> {runs}
while [ "$1" != --target ]; do shift; done
echo "installed = True" > "$2/{module}.py"
echo "$3" > "$2/requirement"
"""
BROKEN_PIP = """#!/bin/sh
echo "WARNING: a warning" >&2
echo "ERROR: No matching distribution found for asyncssh" >&2
echo >&2
exit 1
"""


@pytest.fixture(autouse=True)
def _python_without_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TrialPackage, "is_installed", lambda package: False)
    monkeypatch.setattr(sys, "path", list(sys.path))


def use_python(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    python = folder / "python"
    python.write_text(script)
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))


def test_several_servers_install_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs, notices = tmp_path / "runs", list[str]()
    script = PIP.format(runs=runs, module="module_of_the_test")
    use_python(monkeypatch, tmp_path, script)
    given = tmp_path, lambda: notices.append("installs")
    threads = [threading.Thread(target=ASYNCSSH.obtain, args=given) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert runs.read_text() == "run\n"
    assert notices == ["installs"]
    assert (tmp_path / "packages" / "requirement").read_text() == "asyncssh>=2.18,<3\n"
    import module_of_the_test  # type: ignore[import-not-found]

    assert module_of_the_test.installed


def test_failed_installation_names_the_last_line_and_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_python(monkeypatch, tmp_path, BROKEN_PIP)
    with pytest.raises(PackageMissing, match=r"No matching distribution.*use an image that has it"):
        ASYNCSSH.obtain(tmp_path, print)
    assert [path.name for path in tmp_path.glob("packages*")] == ["packages.lock"]
    # The next connection tries again.
    script = PIP.format(runs=tmp_path / "runs", module="other_module_of_the_test")
    use_python(monkeypatch, tmp_path, script)
    ASYNCSSH.obtain(tmp_path, print)
    assert (tmp_path / "packages" / "other_module_of_the_test.py").exists()


@pytest.mark.parametrize(
    ("version", "found"),
    [("2.18.0", True), ("2.24.1", True), ("3.0", True), ("2.9.1", False), ("x.y", False)],
)
def test_old_version_counts_as_missing(
    monkeypatch: pytest.MonkeyPatch, version: str, found: bool
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(metadata, "version", lambda name: version)
    assert ASYNCSSH.is_installed() is found
