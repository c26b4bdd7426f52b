"""The keeper of a folder: snapshots at stops, notices and ends, and the start with their files."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from detcloud.launch.kept_folder import serve_kept
from detcloud.launch.stop_signals import find_listeners
from tests.forked_process import await_exit_code, fork
from tests.patience import wait_until
from tests.unit.core.trial_files import direct, enter, make_trial, reports

KEPT = {"period_ms": 3_600_000, "bytes_max": 1_000_000}


def serve_until(name: str) -> Callable[[], int]:
    """Return a function that waits for a file of the working directory, and returns 7."""

    def serve() -> int:
        while not Path(name).exists():
            time.sleep(0.01)
        return 7

    return serve


@contextmanager
def kept_program(serve: Callable[[], int]) -> Iterator[int]:
    """Run `serve_kept` in a process; yield its id. The keeper's output is in `log`."""

    def run() -> None:
        # pytest has replaced the standard streams.
        sys.stdout = sys.stderr = open("../log", "a", buffering=1)  # noqa: PTH123, SIM115
        os._exit(serve_kept(serve))

    child = fork(run)
    try:
        yield child
    finally:
        try:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        except (ProcessLookupError, ChildProcessError):
            pass


def snapshots(trial: Path) -> list[dict[str, Any]]:
    if not (trial / "out" / "report-0.jsonl").exists():
        return []
    return reports(trial, "checkpoint")


def reference(report: dict[str, Any]) -> dict[str, Any]:
    names = ("uuid", "trial_id", "path", "steps_completed", "manifest_sha256")
    return {"trial_id": 4, **{name: report[name] for name in names if name in report}}


def log_of(trial: Path) -> str:
    return (trial / "log").read_text()


@pytest.fixture
def trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    trial = make_trial(tmp_path, snapshots=KEPT)
    enter(trial, monkeypatch)
    return trial


def test_program_without_snapshots_runs_in_the_same_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter(make_trial(tmp_path), monkeypatch)
    assert serve_kept(os.getpid) == os.getpid()
    monkeypatch.delenv("DETCLOUD_TRIAL_DIR")
    assert serve_kept(os.getpid) == os.getpid()


def test_changed_folder_is_saved_when_the_program_ends(trial: Path) -> None:
    Path("notes").write_text("typed")
    with kept_program(serve_until("end")) as program:
        wait_until(lambda: find_listeners(str(trial)) == [program])
        Path("end").touch()
        assert await_exit_code(program) == 7
    [saved] = snapshots(trial)
    assert saved["metadata"] == {
        "kind": "folder",
        "steps_completed": 1,
        "entries": 2,
        "size_bytes": 5,
    }
    assert "saved the folder: 2 entries, 5 bytes" in log_of(trial)


def test_empty_folder_is_not_saved(trial: Path) -> None:
    with kept_program(lambda: 0) as program:
        assert await_exit_code(program) == 0
    assert snapshots(trial) == []


def test_stop_saves_and_ends_the_program_at_once(trial: Path) -> None:
    with kept_program(serve_until("never")) as program:
        wait_until(lambda: find_listeners(str(trial)) == [program])
        Path("notes").write_text("typed")
        stop = {"deadline_ms": 9_999_999_999_999, "reason": "killed"}
        direct(trial, revision=2, preempt=stop, stop=stop)
        assert await_exit_code(program) == 128 + signal.SIGTERM
    assert len(snapshots(trial)) == 1


def test_sigterm_without_a_directive_saves_and_ends_the_program(trial: Path) -> None:
    Path("notes").write_text("typed")
    with kept_program(serve_until("never")) as program:
        wait_until(lambda: find_listeners(str(trial)) == [program])
        os.kill(program, signal.SIGTERM)
        assert await_exit_code(program) == 128 + signal.SIGTERM
    assert len(snapshots(trial)) == 1


def test_notice_saves_at_once_and_leaves_the_program_running(trial: Path) -> None:
    with kept_program(serve_until("end")) as program:
        wait_until(lambda: find_listeners(str(trial)) == [program])
        Path("notes").write_text("typed")
        direct(trial, revision=2, preempt={"deadline_ms": 9_999_999_999_999, "reason": "spot"})
        wait_until(lambda: len(snapshots(trial)) == 1)
        Path("end").touch()
        assert await_exit_code(program) == 7
    assert [saved["steps_completed"] for saved in snapshots(trial)] == [1, 2]


def test_program_ends_with_the_keeper(trial: Path) -> None:
    with kept_program(serve_until("never")) as program:
        wait_until(lambda: find_listeners(str(trial)) == [program])
        children = Path(f"/proc/{program}/task/{program}/children")
        [child] = children.read_text().split()
        os.kill(program, signal.SIGKILL)
        os.waitpid(program, 0)
        wait_until(lambda: not Path(f"/proc/{child}").exists() or is_zombie(child))


def is_zombie(process: str) -> bool:
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_folder_that_is_too_large_is_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = make_trial(tmp_path, snapshots={**KEPT, "bytes_max": 4})
    enter(trial, monkeypatch)
    Path("notes").write_text("typed")
    with kept_program(lambda: 0) as program:
        assert await_exit_code(program) == 0
    assert snapshots(trial) == []
    assert "the folder has 5 bytes, more than snapshots.max_size" in log_of(trial)


def test_store_that_fails_does_not_end_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = make_trial(tmp_path, snapshots=KEPT, storage={"type": "unknown"})
    enter(trial, monkeypatch)
    Path("notes").write_text("typed")
    with kept_program(lambda: 3) as program:
        assert await_exit_code(program) == 3
    assert "the files were not saved: storage type 'unknown' is unknown" in log_of(trial)


def test_modules_of_the_folder_do_not_replace_modules_of_the_keeper(
    trial: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(os.getcwd())  # noqa: PTH109
    monkeypatch.delitem(sys.modules, "tarfile", raising=False)
    monkeypatch.delitem(sys.modules, "detcloud.launch.folder_archive", raising=False)
    Path("tarfile.py").write_text("raise SystemExit('the module of the user')")
    with kept_program(lambda: 0) as program:
        assert await_exit_code(program) == 0
    assert len(snapshots(trial)) == 1


def save_once(trial: Path, files: dict[str, str]) -> dict[str, Any]:
    """Save a folder with these files, and return the reference of the snapshot."""
    for name, content in files.items():
        Path(name).write_text(content)
    with kept_program(lambda: 0) as program:
        assert await_exit_code(program) == 0
    [saved] = snapshots(trial)
    (trial / "out" / "report-0.jsonl").unlink()
    return reference(saved)


def test_program_starts_with_the_files_of_a_snapshot(trial: Path, tmp_path: Path) -> None:
    start = save_once(trial, {"notes": "typed", "old": "1"})
    Path("old").unlink()
    Path("hook.sh").write_text("of the code")
    make_trial(tmp_path, snapshots=KEPT, latest_checkpoint=start)
    with kept_program(lambda: sorted(os.listdir()).index("old")) as program:  # noqa: PTH208
        assert await_exit_code(program) == 1
    assert {path.name: path.read_text() for path in Path().iterdir()} == {
        "notes": "typed",
        "old": "1",
    }
    assert "restored the folder: 2 entries, 6 bytes" in log_of(trial)
    # The restored files are stored already.
    assert snapshots(trial) == []


def test_damaged_snapshot_ends_the_run_and_is_never_replaced(trial: Path, tmp_path: Path) -> None:
    start = save_once(trial, {"notes": "typed"})
    archive = tmp_path / "store" / start["path"] / "folder.tar"
    archive.chmod(0o600)
    archive.write_bytes(archive.read_bytes().replace(b"typed", b"tyqed"))
    make_trial(tmp_path, snapshots=KEPT, latest_checkpoint=start)
    with kept_program(lambda: 0) as program:
        assert await_exit_code(program) == 1
    assert "the files could not be restored: checkpoint" in log_of(trial)
    assert Path("notes").read_text() == "typed"
    assert snapshots(trial) == []


def test_missing_snapshot_ends_the_run(trial: Path, tmp_path: Path) -> None:
    start = save_once(trial, {"notes": "typed"})
    (tmp_path / "store" / start["path"] / "folder.tar").unlink()
    make_trial(tmp_path, snapshots=KEPT, latest_checkpoint=start)
    with kept_program(lambda: 0) as program:
        assert await_exit_code(program) == 1
    assert "the files could not be restored" in log_of(trial)
    assert snapshots(trial) == []


def test_snapshot_is_restored_without_new_snapshots(trial: Path, tmp_path: Path) -> None:
    start = save_once(trial, {"notes": "typed"})
    make_trial(tmp_path, snapshots={}, latest_checkpoint=start)
    Path("notes").unlink()
    with kept_program(lambda: int(Path("notes").read_text() == "typed")) as program:
        assert await_exit_code(program) == 1
    assert snapshots(trial) == []
    assert json.loads((trial / "in" / "spec.json").read_text())["snapshots"] == {}
