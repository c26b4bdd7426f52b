"""The files of `detcloud dev`: locks, common contents and backups."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from detcloud.client import dev_state
from detcloud.client.dev_state import DevState
from detcloud.shared.errors import DetcloudError

DAY = 24 * 3600
NOW = 1_000_000_000.0
URL = "http://a"


def test_second_process_for_a_folder_is_refused(tmp_path: Path) -> None:
    first, second, other = (DevState(tmp_path, Path(name)) for name in ("/a", "/a", "/b"))
    with first.hold_lock():
        refusal = "another `detcloud dev` keeps /a the same"
        with pytest.raises(DetcloudError, match=refusal), second.hold_lock():
            raise AssertionError("the lock was free")
        with other.hold_lock():
            pass
    with second.hold_lock():
        pass


def test_common_contents_are_used_once(tmp_path: Path) -> None:
    """After a crash, old contents would make a file of the user look unchanged."""
    state = DevState(tmp_path, Path("/a"))
    state.store_common(5, URL, {"x": "1"})
    assert state.take_common(5, URL) == {"x": "1"}
    assert state.take_common(5, URL) == {}


@pytest.mark.parametrize(("folder", "url"), [("/b", URL), ("/a", "http://b")])
def test_common_contents_of_another_folder_or_cluster_are_ignored(
    tmp_path: Path, folder: str, url: str
) -> None:
    DevState(tmp_path, Path("/a")).store_common(5, URL, {"x": "1"})
    assert DevState(tmp_path, Path(folder)).take_common(5, url) == {}


def test_old_and_many_backups_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dev_state, "BACKUP_BYTES_MAX", 10)
    replaced = tmp_path / "dev" / "replaced"
    # Ages in days, by the number of the shell. Each backup has 4 bytes.
    ages = {1: 8.0, 2: 6.0, 3: 5.0, 4: 4.0, 5: 0.5, 6: 0.25}
    for shell, age in ages.items():
        file = replaced / f"2026010{shell}-120000-{shell}" / "1" / "a"
        file.parent.mkdir(parents=True)
        file.write_bytes(b"mine")
        for path in (file, file.parents[1]):
            os.utime(path, (NOW - age * DAY, NOW - age * DAY))
    (replaced / "note").write_text("of the user")
    DevState(tmp_path, Path("/a")).prune_backups(NOW)
    # Shells 6 and 5 have 8 bytes, and shell 4 would exceed 10 bytes. Shell 1 is too old.
    assert sorted(path.name[-1] for path in replaced.glob("2026*")) == ["5", "6"]
    assert (replaced / "note").exists()


def test_recent_backups_are_kept_above_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dev_state, "BACKUP_BYTES_MAX", 1)
    session = tmp_path / "dev" / "replaced" / "20260101-120000-1"
    session.mkdir(parents=True)
    (session / "a").write_bytes(b"mine")
    os.utime(session / "a", (NOW, NOW))
    DevState(tmp_path, Path("/a")).prune_backups(NOW)
    assert (session / "a").exists()
