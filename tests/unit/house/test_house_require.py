import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, require, require_installed
from tests.patience import PROCESS_SECONDS_MAX


def test_require_imports_installed_modules() -> None:
    assert require("json") is json


def test_require_skips_missing_modules_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DETCLOUD_REQUIRE", raising=False)
    with pytest.raises(pytest.skip.Exception, match="make setup"):
        require("detcloud_none")


def test_require_fails_for_missing_demanded_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DETCLOUD_REQUIRE", "torch,detcloud_none")
    with pytest.raises(pytest.fail.Exception, match="DETCLOUD_REQUIRE"):
        require("detcloud_none")


def test_require_installed_imports_no_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DETCLOUD_REQUIRE", "this,detcloud_none")
    monkeypatch.delitem(sys.modules, "this", raising=False)
    require_installed("this")
    assert "this" not in sys.modules
    with pytest.raises(pytest.fail.Exception, match="DETCLOUD_REQUIRE"):
        require_installed("detcloud_none")


@pytest.mark.parametrize(
    ("module", "required", "outcome"),
    [
        ("detcloud_none.part", "", "skipped"),
        ("detcloud_none.part", "torch", "error"),
        # A module of the project is never missing because of the installation.
        ("control_plane.none", "", "error"),
        ("detcloud.none", "", "error"),
    ],
)
def test_file_with_a_missing_import_is_skipped_unless_demanded(
    tmp_path: Path, module: str, required: str, outcome: str
) -> None:
    test = tmp_path / "test_import.py"
    test.write_text(f"import {module}\n\ndef test_import() -> None:\n    pass\n")
    command = [sys.executable, "-m", "pytest", "-rs", "-p", "no:cacheprovider", "-p"]
    command += ["tests.conftest", f"--rootdir={tmp_path}", "-c", os.devnull, str(test)]
    done = subprocess.run(
        command,
        env={**os.environ, "DETCLOUD_REQUIRE": required, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PROCESS_SECONDS_MAX,
        check=False,
    )
    assert f"1 {outcome}" in done.stdout, done.stdout + done.stderr
    assert ("detcloud_none is not installed" in done.stdout) == (outcome == "skipped")
