"""The archives of AWS's functions."""

import sys
import zipfile
from pathlib import Path

import pytest

from infra.aws import bundle


def test_archive_holds_compiled_code_with_unchecked_hashes(tmp_path: Path) -> None:
    """A function's folder is read-only, so that uncompiled code is compiled at each start."""
    (tmp_path / "lambdas").mkdir()
    (tmp_path / "lambdas" / "api.py").write_text("ANSWER = 42\n")
    here = ".".join(map(str, sys.version_info[:2]))
    bundle.compile_code(bundle.Target("here", here, "any"), tmp_path)
    [compiled] = tmp_path.rglob("*.pyc")
    # PEP 552: bit 0 marks a hash instead of a time. Bit 1, which is not set, would check the hash.
    assert compiled.read_bytes()[4:8] == (1).to_bytes(4, "little")
    assert str(tmp_path).encode() not in compiled.read_bytes()


def test_missing_python_version_is_reported_and_skips_compilation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "api.py").write_text("ANSWER = 42\n")
    bundle.compile_code(bundle.Target("later", "3.99", "any"), tmp_path)
    assert not list(tmp_path.rglob("*.pyc"))
    assert "python3.99 is not installed here" in capsys.readouterr().err


def test_archive_holds_only_imported_packages(tmp_path: Path) -> None:
    def install(target: bundle.Target, content: Path, packages: list[str]) -> None:
        assert any(package.startswith("mangum") for package in packages)
        (content / "mangum.py").write_text("ANSWER = 42\n")

    # Compiling takes a while and is not tested here; no interpreter has this version.
    later = bundle.Target("later", "3.99", "any")
    first = bundle.build_archive(later, tmp_path / "a", install=install)
    names = set(zipfile.ZipFile(first).namelist())
    assert {
        "mangum.py",
        "lambdas/aws/advance.py",
        "control_plane/api/app.py",
        "detcloud/__init__.py",
    } <= names
    left_out = ("detcloud/_server/", "simulator/", "local_cluster/", "infra/")
    assert not [name for name in names if name.startswith(left_out) or "__pycache__" in name]
    second = bundle.build_archive(later, tmp_path / "b", install=install)
    assert first.read_bytes() == second.read_bytes()
