import tempfile
from pathlib import Path

import pytest

from detcloud.core.temporary_folder import make_temporary_folder


def test_folders_are_made_in_the_allocations_own_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DETCLOUD_TMPDIR", str(tmp_path))
    with make_temporary_folder("detcloud-checkpoint-") as folder:
        assert Path(folder).parent == tmp_path
        assert Path(folder).name.startswith("detcloud-checkpoint-")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["", "gone"])
def test_without_such_a_place_they_are_where_temporary_ones_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setenv("DETCLOUD_TMPDIR", str(tmp_path / place) if place else "")
    with make_temporary_folder("detcloud-checkpoint-") as folder:
        assert Path(folder).parent == Path(tempfile.gettempdir())
