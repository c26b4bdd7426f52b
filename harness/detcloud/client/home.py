"""The data folder of the embedded cluster, as seen by those who look for the cluster.

The server holds an exclusive lock on `server.lock` for its whole life, so that a `server.json` left
by a crash is recognised by the free lock. Whoever starts a server holds `lock` meanwhile, and
whoever looks for one shares it: looking waits for a start under way.
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

from detcloud import DetcloudError

HOME_VARIABLE = "DETCLOUD_HOME"


@dataclass(frozen=True)
class ServerRecord:
    """`server.json`: a server that holds its lock."""

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
        """`DETCLOUD_HOME`, or `.detcloud` in the user's home folder."""
        chosen = os.environ.get(HOME_VARIABLE)
        return cls(Path(chosen).expanduser().absolute() if chosen else Path.home() / ".detcloud")

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    def make(self) -> None:
        """Makes the folder unless it is there, for its owner only.

        Raises:
            DetcloudError: it cannot be made or written.
        """
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self.locked(shared=True):
                return
        except OSError as error:
            raise DetcloudError(
                f"the data folder {self.folder} cannot be used: {error.strerror}; "
                f"{HOME_VARIABLE} names another one"
            ) from None

    def server(self) -> ServerRecord | None:
        """The running server, after waiting for a start under way; None when there is none."""
        if not self.folder.is_dir():
            return None
        with self.locked(shared=True):
            return self.server_unlocked()

    def server_unlocked(self) -> ServerRecord | None:
        """As `server`, for a caller that holds the lock."""
        record = self._record()
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
            raise DetcloudError(f"{path} holds no token: it is no text") from None

    @contextmanager
    def locked(self, *, shared: bool = False) -> Iterator[None]:
        """Holds `lock`: exclusively to start or stop a server, shared to look for one."""
        with (self.folder / "lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
            yield

    def _record(self) -> ServerRecord | None:
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
