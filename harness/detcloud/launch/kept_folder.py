"""The process that keeps the folder of a notebook or shell: restores the files and saves snapshots.

The first process of the program forks. The child serves the user, and the first process becomes the
keeper. It compares the folder with the last snapshot every few minutes, at a notice of the
machine's end, and when the run is stopped or the child ends.

The keeper is a listener (stop_signals.py): it reads the directives, the file with the cluster's
requests to stop. Therefore the supervisor sends SIGTERM only late in the grace period, after time
to save.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from detcloud.launch.snapshot_plan import KeptSettings, SnapshotPlan
from detcloud.launch.stop_signals import CLAIM_PREFIX
from detcloud.shared.errors import DetcloudError
from detcloud.shared.parent_death import end_with_parent
from detcloud.shared.processes import read_process
from detcloud.shared.trial_directory import Directives, TrialDirectory

if TYPE_CHECKING:
    from detcloud.launch.folder_archive import FolderContent, FolderRules
    from detcloud.launch.folder_store import FolderStore

POLL_SECONDS = 0.5
FAILED = 1
NAMES_SHOWN = 5


def serve_kept(serve: Callable[[], int]) -> int:
    """Restore the folder, then call `serve` and save snapshots meanwhile; return the exit code.

    The folder is the working directory. Without the field `snapshots` in the trial's specification,
    only call `serve`. If the files of another run cannot be restored, print the reason, call
    nothing and return 1. With snapshots, `serve` runs in a forked process, where this function
    returns its result; the caller must then end the process with this exit code.

    Raises DetcloudError if the trial's directory is invalid, and OSError if the system cannot fork.
    """
    directory = TrialDirectory.from_environment()
    if directory is None or directory.spec.snapshots is None:
        return serve()
    folder, fingerprint = Path.cwd(), ""
    if directory.spec.latest_checkpoint is not None:
        try:
            fingerprint = _restore(directory, folder)
        except (DetcloudError, OSError) as error:
            print(f"detcloud: the files could not be restored: {error}", file=sys.stderr)
            return FAILED
    settings = KeptSettings.of_spec(directory.spec.snapshots)
    if settings is None or directory.spec.storage is None:
        return serve()
    keeper = os.getpid()
    child = os.fork()
    if child == 0:
        end_with_parent(keeper)
        return serve()
    return Keeper(directory, folder, child, settings, fingerprint).run()


class Keeper:
    """Saves snapshots of a folder while a child process serves the user."""

    def __init__(
        self,
        directory: TrialDirectory,
        folder: Path,
        child: int,
        settings: KeptSettings,
        fingerprint: str,
    ) -> None:
        """Create the keeper of `folder`.

        Args:
            directory: the trial's directory.
            folder: the folder to keep, an absolute path.
            child: the process id of the child.
            settings: the settings of the snapshots.
            fingerprint: the fingerprint of the content that is stored already; "" for an empty
                folder.
        """
        self._directory = directory
        self._folder = folder
        self._child = child
        self._plan = SnapshotPlan(settings, time.monotonic())
        self._fingerprint = fingerprint
        self._store: FolderStore | None = None
        self._told = set[str]()
        self._has_sigterm = False
        self._is_stopping = False
        self._is_saving = False
        self._has_saved = False
        self._wake, self._wake_end = os.pipe()

    def run(self) -> int:
        """Keep the folder until the child ends, save a last time, and return the child's exit code.

        The code is 128 + n after signal n. No failure of a snapshot ends the child.
        """
        self._install_signal_handlers()
        _hide_folder(self._folder)
        with contextlib.suppress(OSError):
            _note_listener(self._directory)
        while True:
            ended, status = os.waitpid(self._child, os.WNOHANG)
            if ended:
                code = os.waitstatus_to_exitcode(status)
                self._save_changes(is_last=True)
                return code if code >= 0 else 128 - code
            self._follow_requests()
            select.select([self._wake], [], [], POLL_SECONDS)
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake, 512)

    def _install_signal_handlers(self) -> None:
        """Note SIGTERM, and wake the loop at SIGTERM and SIGCHLD."""
        for descriptor in (self._wake, self._wake_end):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(self._wake_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._note_sigterm)

    def _note_sigterm(self, *_: object) -> None:
        """Note a request to stop. During a snapshot, also stop the child, since the grace may
        soon end.
        """
        self._has_sigterm = True
        if self._is_saving or self._is_stopping:
            self._stop_child()

    def _follow_requests(self) -> None:
        """Save if a snapshot is due. When the run is stopped, save once and stop the child."""
        if self._is_stopping:
            return
        directives = self._read_directives()
        has_notice = directives.preempt is not None
        if self._has_sigterm or directives.stop is not None:
            self._is_stopping = True
            self._save_changes(is_last=True)
            self._stop_child()
        elif self._plan.is_due(time.monotonic(), has_notice=has_notice):
            self._save_changes(is_last=has_notice)

    def _read_directives(self) -> Directives:
        """Return the newest directives. A malformed or unreadable file counts as unchanged."""
        with contextlib.suppress(DetcloudError, OSError):
            return self._directory.directives.read()
        return self._directory.directives.latest

    def _stop_child(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._child, signal.SIGTERM)

    def _save_changes(self, *, is_last: bool) -> None:
        """Save a snapshot if the folder has changed, and tell of failures in the log.

        The log names the first snapshot, and with `is_last` each later one.
        """
        self._is_saving = True
        try:
            self._try_to_save(is_last=is_last)
        except Exception as error:
            # The user's program must survive every failure of a snapshot.
            _log(f"the files were not saved: {error}")
        finally:
            self._is_saving = False

    def _try_to_save(self, *, is_last: bool) -> None:
        """Save a snapshot if the folder has changed. Any exception may be raised."""
        # Imported here, because the user waits for the child's start in the meantime.
        from detcloud.launch.folder_archive import EMPTY_FINGERPRINT, scan_folder
        from detcloud.launch.folder_rules import read_rules

        rules, problem = read_rules(self._folder)
        if problem:
            self._tell_once(f".detignore is not obeyed: {problem}")
        content = scan_folder(self._folder, rules)
        if content.fingerprint == (self._fingerprint or EMPTY_FINGERPRINT):
            return
        if not self._plan.fits(content.size_bytes):
            if self._plan.should_report(content.size_bytes):
                _log(
                    f"the folder has {content.size_bytes:,} bytes, more than snapshots.max_size: "
                    "it is not saved. Delete files, or list them in .detignore"
                )
            return
        saved = self._save(rules)
        self._fingerprint = content.fingerprint
        if is_last or not self._has_saved:
            _log(f"saved the folder: {saved.entries} entries, {saved.size_bytes:,} bytes")
        self._has_saved = True
        if saved.left_out:
            names = ", ".join(saved.left_out[:NAMES_SHOWN])
            more = " and more" if len(saved.left_out) > NAMES_SHOWN else ""
            self._tell_once(f"not saved: {names}{more}")

    def _save(self, rules: FolderRules) -> FolderContent:
        """Save a snapshot, and open the store before the first. Any exception may be raised."""
        if self._store is None:
            from detcloud.launch.folder_store import FolderStore

            self._store = FolderStore(self._directory)
        return self._store.save(self._folder, rules)

    def _tell_once(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            _log(text)


def _restore(directory: TrialDirectory, folder: Path) -> str:
    """Replace the content of the folder by the snapshot, and return the fingerprint.

    Raises DetcloudError if the snapshot is damaged or missing, or the store fails. Raises OSError.
    """
    from detcloud.launch.folder_archive import scan_folder
    from detcloud.launch.folder_rules import read_rules
    from detcloud.launch.folder_store import FolderStore

    rules, _ = read_rules(folder)
    FolderStore(directory).restore(folder, rules)
    # The restored `.detignore` counts from now on.
    rules, _ = read_rules(folder)
    content = scan_folder(folder, rules)
    _log(f"restored the folder: {content.entries} entries, {content.size_bytes:,} bytes")
    return content.fingerprint


def _hide_folder(folder: Path) -> None:
    """Remove the folder from the places where this process searches for modules.

    The user may write a file such as `json.py` there before this process imports `json`.
    """
    sys.path[:] = [place for place in sys.path if os.path.realpath(place) != str(folder)]


def _note_listener(directory: TrialDirectory) -> None:
    """Record in `out` that this process reads the directives, so that SIGTERM comes late.

    The rank's own claim stays free for code that the user runs in the folder. Raises OSError.
    """
    own = read_process(os.getpid())
    if own is None:
        return
    out = directory.path / "out"
    out.mkdir(parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(out / f"{CLAIM_PREFIX}keeper", flags, 0o644)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(f"{own.pid} {own.started_ticks}")


def _log(text: str) -> None:
    """Print a line to the log of the run. Ignore a log that cannot be written."""
    with contextlib.suppress(OSError):
        print(f"[detcloud] {text}", flush=True)
