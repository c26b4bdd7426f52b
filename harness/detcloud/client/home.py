"""Data folder of the embedded cluster, as commands that look for the cluster see it.

The server holds an exclusive lock on `server.lock` for its whole life, so that a `server.json` left
by a crash is recognised by the free lock. A command that starts a server holds `lock` meanwhile,
and one that looks for a server shares it, so that it waits for a start under way.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from detcloud.shared.errors import DetcloudError

HOME_VARIABLE = "DETCLOUD_HOME"


@dataclass(frozen=True)
class ServerRecord:
    """A running server, as `server.json` describes it."""

    url: str
    pid: int
    started_ms: int
    version: str


@dataclass(frozen=True)
class Home:
    """The folder of one embedded cluster; it need not exist."""

    folder: Path

    @classmethod
    def from_environment(cls) -> Home:
        """Return `DETCLOUD_HOME`, or `.detcloud` in the user's home folder."""
        chosen = os.environ.get(HOME_VARIABLE)
        return cls(Path(chosen).expanduser().absolute() if chosen else Path.home() / ".detcloud")

    @property
    def log(self) -> Path:
        """The server's log."""
        return self.folder / "server.log"

    def create_folder(self) -> None:
        """Create the folder unless it exists, accessible to its owner only.

        Raises:
            DetcloudError: it cannot be made or written.
        """
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self.hold_lock(shared=True):
                return
        except OSError as error:
            raise DetcloudError(
                f"the data folder {self.folder} cannot be used: {error.strerror}; "
                f"{HOME_VARIABLE} names another one"
            ) from None

    def running_server(self) -> ServerRecord | None:
        """The running server, after waiting for a start under way; None when there is none."""
        if not self.folder.is_dir():
            return None
        with self.hold_lock(shared=True):
            return self.running_server_under_lock()

    def running_server_under_lock(self) -> ServerRecord | None:
        """The running server, for a caller that holds the lock; None when there is none."""
        record = self._read_record()
        return record if record is not None and self._server_lock_is_held() else None

    def token(self) -> str:
        """The token of this cluster's user.

        Raises:
            DetcloudError: it cannot be read.
        """
        path = self.folder / "token"
        try:
            return path.read_text(encoding="ascii").strip()
        except OSError as error:
            raise DetcloudError(f"{path} could not be read: {error.strerror}") from None
        except ValueError:
            raise DetcloudError(f"{path} contains no token: it is not text") from None

    @contextmanager
    def hold_lock(self, *, shared: bool = False) -> Iterator[None]:
        """Hold `lock`: exclusively to start or stop a server, shared to look for one."""
        with (self.folder / "lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
            yield

    def _read_record(self) -> ServerRecord | None:
        try:
            fields = json.loads((self.folder / "server.json").read_text())
            return ServerRecord(
                url=str(fields["url"]),
                pid=int(fields["pid"]),
                started_ms=int(fields["started_ms"]),
                version=str(fields["version"]),
            )
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    def _server_lock_is_held(self) -> bool:
        try:
            with (self.folder / "server.lock").open("a") as file:
                return not _try_lock(file)
        except OSError:
            return False


def _try_lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
