import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, require, require_installed
from tests.patience import PROCESS_SECONDS_MAX


def test_what_is_installed_is_imported() -> None:
    assert require("json") is json


def test_what_is_missing_skips_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DETCLOUD_REQUIRE", raising=False)
    with pytest.raises(pytest.skip.Exception, match="make setup"):
        require("detcloud_none")


def test_what_is_missing_and_demanded_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DETCLOUD_REQUIRE", "torch,detcloud_none")
    with pytest.raises(pytest.fail.Exception, match="DETCLOUD_REQUIRE"):
        require("detcloud_none")


def test_what_other_processes_need_is_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DETCLOUD_REQUIRE", "this,detcloud_none")
    monkeypatch.delitem(sys.modules, "this", raising=False)
    require_installed("this")
    assert "this" not in sys.modules
    with pytest.raises(pytest.fail.Exception, match="DETCLOUD_REQUIRE"):
        require_installed("detcloud_none")


@pytest.mark.parametrize(
    ("module", "required", "said"),
    [
        ("detcloud_none.part", "", "skipped"),
        ("detcloud_none.part", "torch", "error"),
        # What is our own is never missing for want of an installation.
        ("control_plane.none", "", "error"),
        ("detcloud.none", "", "error"),
    ],
)
def test_a_module_that_imports_what_is_missing_is_skipped_unless_all_is_demanded(
    tmp_path: Path, module: str, required: str, said: str
) -> None:
    test = tmp_path / "test_it.py"
    test.write_text(f"import {module}\n\ndef test_it() -> None:\n    pass\n")
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
    assert f"1 {said}" in done.stdout, done.stdout + done.stderr
    assert ("detcloud_none is not installed" in done.stdout) == (said == "skipped")
