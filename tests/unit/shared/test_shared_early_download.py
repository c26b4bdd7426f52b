import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from detcloud.shared.early_download import (
    FILES,
    FOLDER,
    MANIFEST,
    EarlyDownload,
    Notify,
    begin_early_download,
    end_early_download,
    find_early_download,
)
from detcloud.shared.trial_directory import TEMPORARY_FOLDER_VARIABLE, CheckpointReference
from tests.patience import wait_until

REFERENCE = CheckpointReference("u-1", 4, "3/4/1/u-1", 7, "abc")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The trial's temporary folder, without remains of the download afterwards."""
    (folder := tmp_path / "tmp").mkdir()
    monkeypatch.setenv(TEMPORARY_FOLDER_VARIABLE, str(folder))
    yield folder
    if (early := find_early_download(REFERENCE)) is not None:
        end_early_download(early)
    assert list(folder.iterdir()) == []


def begin(download: object) -> EarlyDownload:
    begin_early_download(REFERENCE, download)  # type: ignore[arg-type]
    early = find_early_download(REFERENCE)
    assert early is not None
    return early


def download_all(folder: Path, notify: Notify) -> None:
    (folder / MANIFEST).write_text(json.dumps({"files": {"weights": {}}}))
    notify()
    (folder / FILES / "deep").mkdir()
    (folder / FILES / "deep" / "weights").write_bytes(b"weights")


def test_files_are_moved_and_the_rest_is_deleted(tmp_path: Path) -> None:
    early = begin(download_all)
    assert early.manifest() == {"files": {"weights": {}}}
    assert early.move_file("deep/weights", tmp_path / "weights")
    assert (tmp_path / "weights").read_bytes() == b"weights"
    # A file is moved only once, and an unknown file is never moved.
    assert not early.move_file("deep/weights", tmp_path / "again")
    assert not early.move_file("other", tmp_path / "other")
    end_early_download(early)
    assert find_early_download(REFERENCE) is None
    assert early.manifest() is None
    assert not early.move_file("deep/weights", tmp_path / "again")


def test_other_references_have_no_early_download() -> None:
    begin(download_all)
    assert find_early_download(CheckpointReference("u-2", 4, "3/4/1/u-2", 7, "abc")) is None


def test_manifest_is_known_before_the_files(tmp_path: Path) -> None:
    may_end = tmp_path / "may_end"

    def download(folder: Path, notify: Notify) -> None:
        download_all(folder, notify)
        while not may_end.exists():
            time.sleep(0.01)

    early = begin(download)
    assert early.manifest() == {"files": {"weights": {}}}
    may_end.touch()
    assert early.move_file("deep/weights", tmp_path / "weights")


def test_failed_download_is_printed_once_and_frees_the_space(
    tmp_path: Path, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def download(folder: Path, notify: Notify) -> None:
        download_all(folder, notify)
        raise ValueError("no\nluck")

    early = begin(download)
    assert not early.move_file("deep/weights", tmp_path / "weights")
    assert early.manifest() is None
    assert capsys.readouterr().out == (
        "[detcloud] checkpoint u-1 was not downloaded during the start and is downloaded now: "
        "ValueError: no luck\n"
    )
    assert not (place / FOLDER).exists()


def test_killed_child_is_a_failed_download(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def download(folder: Path, notify: Notify) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    early = begin(download)
    assert early.manifest() is None
    assert "is downloaded now: its process ended" in capsys.readouterr().out


def test_child_writes_nothing_to_the_log(capfd: pytest.CaptureFixture[str]) -> None:
    def download(folder: Path, notify: Notify) -> None:
        os.write(1, b"noise")
        os.write(2, b"noise")
        download_all(folder, notify)

    early = begin(download)
    assert early.manifest() is not None
    assert capfd.readouterr() == ("", "")


def test_end_kills_a_running_child(tmp_path: Path) -> None:
    def download(folder: Path, notify: Notify) -> None:
        (tmp_path / "child").write_text(str(os.getpid()))
        time.sleep(3600)

    early = begin(download)
    wait_until(lambda: (tmp_path / "child").exists() and (tmp_path / "child").read_text())
    child = int((tmp_path / "child").read_text())
    end_early_download(early)
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
    # Another end, for example of a second reader, changes nothing.
    end_early_download(early)


def test_child_that_other_code_has_reaped_is_not_killed() -> None:
    early = begin(download_all)
    assert early.manifest() is not None
    os.wait()
    end_early_download(early)


def test_second_process_of_the_machine_begins_no_download(place: Path) -> None:
    (place / FOLDER).mkdir()
    begin_early_download(REFERENCE, download_all)
    assert find_early_download(REFERENCE) is None
    (place / FOLDER).rmdir()


@pytest.mark.parametrize("folder", ["", "missing"])
def test_without_a_temporary_folder_nothing_is_begun(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    folder: str,
) -> None:
    monkeypatch.setenv(TEMPORARY_FOLDER_VARIABLE, folder and str(tmp_path / folder))
    begin_early_download(REFERENCE, download_all)
    assert find_early_download(REFERENCE) is None
    # Only agents set the variable, so a missing folder is worth a line.
    assert ("no early download" in capsys.readouterr().out) == bool(folder)
