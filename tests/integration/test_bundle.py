"""The archives that are deployed, as pip and the package index make them."""

import zipfile
from pathlib import Path

import pytest

from infra.aws.bundle import EXTRAS, TARGETS, build_archive


@pytest.mark.parametrize("kind", EXTRAS)
def test_an_archive_for_another_machine_is_whole_and_within_the_quotas(
    kind: str, tmp_path: Path
) -> None:
    archive = build_archive(TARGETS["arm64"], tmp_path, kind)
    with zipfile.ZipFile(archive) as opened:
        names = opened.namelist()
        unpacked = sum(info.file_size for info in opened.infolist())
    # Of code that was compiled for a machine there is some, and all of it is for this one.
    compiled = [name for name in names if ".cpython-" in name and name.endswith(".so")]
    assert any(name.startswith("pydantic_core/") for name in compiled)
    assert all("cpython-313-aarch64" in name for name in compiled)
    assert any(name.startswith("optuna/") for name in names) == (kind == "suggest")
    # What AWS takes at once, and unpacked.
    assert archive.stat().st_size <= 50_000_000
    assert unpacked <= 250_000_000
