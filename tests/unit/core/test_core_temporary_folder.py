import tempfile
from pathlib import Path

import pytest

from detcloud.core.temporary_folder import make_temporary_folder


def test_temporary_folder_lies_in_the_allocations_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DETCLOUD_TMPDIR", str(tmp_path))
    with make_temporary_folder("detcloud-checkpoint-") as folder:
        assert Path(folder).parent == tmp_path
        assert Path(folder).name.startswith("detcloud-checkpoint-")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["", "gone"])
def test_temporary_folder_falls_back_to_the_system_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setenv("DETCLOUD_TMPDIR", str(tmp_path / place) if place else "")
    with make_temporary_folder("detcloud-checkpoint-") as folder:
        assert Path(folder).parent == Path(tempfile.gettempdir())
