"""The download of a run's first checkpoint by a child process, while this process imports code.

The child fills a folder, and this process moves the files to their places. A child that fails or is
killed costs only time: the files that were not moved are then downloaded in the usual way, which
also reports damage and failures of the store.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any, NoReturn

from detcloud.shared.files import delete_tree, read_json_object
from detcloud.shared.parent_death import end_with_parent
from detcloud.shared.trial_directory import TEMPORARY_FOLDER_VARIABLE, CheckpointReference

FOLDER, FILES, MANIFEST = "detcloud-early-checkpoint", "files", "manifest.json"
Notify = Callable[[], None]
Download = Callable[[Path, Notify], None]
"""A function that writes MANIFEST to a folder, calls its second argument, and fills FILES.

All files are verified before the function returns. The function raises an exception otherwise.
"""
_KNOWN, _COMPLETE, _FAILED = "manifest", "complete", "failed"
_TEXT_BYTES_MAX = 500
_running: list[EarlyDownload] = []


class EarlyDownload:
    """A checkpoint that a child process downloads. Several threads may use the object.

    `close` ends the child and deletes the files that were not moved.
    """

    def __init__(
        self, reference: CheckpointReference, folder: Path, child: int, channel: int
    ) -> None:
        """Create the object of a running child.

        Args:
            reference: the checkpoint.
            folder: the folder that the child fills.
            child: the process id of the child.
            channel: the descriptor from which the child's messages are read, until `close`.
        """
        self.reference = reference
        self._folder = folder
        self._child = child
        self._channel = channel
        self._lock = Lock()
        self._received = b""
        self._said: list[str] = []
        self._is_closed = False

    def manifest(self) -> dict[str, Any] | None:
        """Return the verified manifest, after waiting for the child to read the manifest.

        Return None after `close`, or if the child failed before.
        """
        with self._lock:
            return read_json_object(self._folder / MANIFEST) if self._await(_KNOWN) else None

    def move_file(self, name: str, destination: Path) -> bool:
        """Move a file of the checkpoint to `destination`, after waiting for the end of the child.

        Return False, and move nothing, if the child failed, the file was moved before, or the
        destination is on another file system. An existing destination is replaced. The folder of
        `destination` must exist.
        """
        with self._lock:
            if not self._await(_COMPLETE):
                return False
            try:
                (self._folder / FILES / name).replace(destination)
            except OSError:
                return False
            return True

    def close(self) -> None:
        """End the child if it still runs, and delete the remaining files. Raise nothing."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            _end_child(self._child)
            os.close(self._channel)
            with suppress(OSError):
                delete_tree(self._folder)

    def _await(self, word: str) -> bool:
        """Wait for a message of the child, and return whether the child sent the message.

        If the child fails first, print the reason once, delete the files, and return False.
        """
        while not self._is_closed and word not in self._said and _FAILED not in self._said:
            line, separator, rest = self._received.partition(b"\n")
            if separator:
                self._received = rest
                self._note(line.decode(errors="replace"))
            elif block := os.read(self._channel, _TEXT_BYTES_MAX):
                self._received += block
            else:
                self._note(f"{_FAILED} its process ended")
        return not self._is_closed and word in self._said and _FAILED not in self._said

    def _note(self, message: str) -> None:
        kind, _, reason = message.partition(" ")
        self._said.append(kind)
        if kind == _FAILED:
            text = (
                f"[detcloud] checkpoint {self.reference.uuid} was not downloaded during the start"
            )
            print(f"{text} and is downloaded now: {reason}", flush=True)
            # The usual download may need the space.
            with suppress(OSError):
                delete_tree(self._folder)


def begin_early_download(reference: CheckpointReference, download: Download) -> None:
    """Start a child process that calls `download` for this checkpoint.

    Do nothing without a temporary folder of an agent, or if such a download was begun for this
    trial's processes on this machine before. If the child cannot be started, print the reason. The
    process must have a single thread. The child ends with this process, and writes nothing to the
    log.
    """
    place = os.environ.get(TEMPORARY_FOLDER_VARIABLE)
    if not place:
        return
    folder = Path(place) / FOLDER
    try:
        folder.mkdir(mode=0o700)
        (folder / FILES).mkdir()
        ours, theirs = os.pipe()
        parent = os.getpid()
        child = os.fork()
    except FileExistsError:
        return
    except OSError as error:
        print(f"[detcloud] no early download of the checkpoint: {error}", flush=True)
        return
    if child == 0:
        _run_child(parent, folder, download, theirs)
    os.close(theirs)
    _running.append(EarlyDownload(reference, folder, child, ours))


def find_early_download(reference: CheckpointReference) -> EarlyDownload | None:
    """Return the early download of this checkpoint. Return None if none was begun or it ended."""
    return next((early for early in _running if early.reference == reference), None)


def end_early_download(early: EarlyDownload) -> None:
    """Close an early download, so that later reads of the checkpoint use the store."""
    early.close()
    with suppress(ValueError):
        _running.remove(early)


def _run_child(parent: int, folder: Path, download: Download, channel: int) -> NoReturn:
    """Call `download` in the child, send the outcome to the parent, and end the process."""
    try:
        # A stop of the trial may signal all of its processes.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        end_with_parent(parent)
        nothing = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(nothing, standard)
        download(folder, lambda: _send(channel, _KNOWN))
        _send(channel, _COMPLETE)
    except BaseException as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        with suppress(OSError):
            _send(channel, f"{_FAILED} {reason}")
    finally:
        os._exit(0)


def _send(channel: int, message: str) -> None:
    # The reader of the pipe receives a write of this size as a whole.
    os.write(channel, message.encode(errors="replace")[:_TEXT_BYTES_MAX] + b"\n")


def _end_child(child: int) -> None:
    """Kill and reap the child. Do nothing if other code has reaped the child."""
    with suppress(ChildProcessError, ProcessLookupError):
        if os.waitpid(child, os.WNOHANG)[0] == 0:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
