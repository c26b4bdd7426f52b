"""The thread that synchronises a folder of this machine and a folder of a trial."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable

from detcloud.client.folder_sync import FolderSync
from detcloud.shared.errors import DetcloudError
from detcloud.shared.folder_sync.folder import FileRefused

ROUND_SECONDS = 2.0
"""The interval between looks at the folder of this machine."""
HURRIED_SECONDS = 0.5
"""The interval between rounds after a notice about an end of the trial's machine or the trial."""
IDLE_SHARE = 10.0
"""The least interval between looks, as a multiple of a look's time, for large folders."""
PAUSE_SECONDS = 0.25
"""The least interval between rounds, because a hostile machine may send notices without an end."""
REFUSED_SECONDS = 30.0
"""The interval between attempts to list a folder that has too many files."""


class SyncThread:
    """A thread that runs rounds of a FolderSync until `finish`."""

    def __init__(self, sync: FolderSync, report: Callable[[str], None]) -> None:
        """Start the thread. `report` is called with the reason if the thread ends early."""
        self._sync, self._report = sync, report
        self._is_over, self._is_hurried = threading.Event(), threading.Event()
        self._has_finished = False
        self._refusal = ""
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="folder", daemon=True)
        self._thread.start()

    def finish(self, seconds: float) -> bool:
        """Transfer the last differences, and end the thread.

        Return whether this machine has all contents of the trial, as `FolderSync.finish` does.
        Return False if that takes longer than `seconds`.
        """
        self._is_over.set()
        self._wake()
        self._thread.join(seconds)
        return self._has_finished

    def hurry(self) -> None:
        """Run rounds often from now on, because the trial's machine or the trial may end soon."""
        self._is_hurried.set()
        self._wake()

    @property
    def is_alive(self) -> bool:
        """Whether the thread still uses the FolderSync."""
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._is_over.is_set():
                seconds = self._run_round()
                self._sync.wait(seconds, self._wake_reader)
                self._clear_wake()
                self._is_over.wait(PAUSE_SECONDS)
            self._has_finished = self._sync.finish()
        except (DetcloudError, OSError) as error:
            self._report(f"the folders are no longer kept the same: {error}")
        finally:
            self._wake_reader.close()
            self._wake_writer.close()

    def _run_round(self) -> float:
        """Run a round, and return the seconds until the next round."""
        is_hurried = self._is_hurried.is_set()
        begun = time.monotonic()
        try:
            # The bytes of a listing would keep an idle run alive. So the trial's folder is listed
            # again only after a notice of a change, also if the limit of an idle run is near.
            if self._sync.run_round(is_last=is_hurried):
                # Some transfers take long. The next round may find more changes.
                return HURRIED_SECONDS if is_hurried else ROUND_SECONDS
            self._refusal = ""
        except FileRefused as error:
            # A later round may list the folder, for example after a change of `.detignore`.
            if str(error) != self._refusal:
                self._refusal = str(error)
                self._report(f"the folders are not kept the same: {error}")
            return REFUSED_SECONDS
        if is_hurried:
            return HURRIED_SECONDS
        return max(ROUND_SECONDS, IDLE_SHARE * (time.monotonic() - begun))

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            self._wake_writer.send(b"w")

    def _clear_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._wake_reader.recv(4096):
                pass
