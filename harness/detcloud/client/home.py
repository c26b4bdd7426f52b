"""The data folder of the embedded cluster, for commands that look for the running server.

The server holds an exclusive lock on `server.lock` as long as it runs. After a crash the lock is
free, so that an old `server.json` is recognised. A command that starts a server holds `lock`
exclusively. A command that looks for a server holds it shared, and so waits for a start in
progress.
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
    """The content of `server.json`, which describes the server that was started last."""

    url: str
    pid: int
    started_ms: int
    version: str


@dataclass(frozen=True)
class Home:
    """The data folder of an embedded cluster. The folder may be missing."""

    folder: Path

    @classmethod
    def from_environment(cls) -> Home:
        """Return the folder that DETCLOUD_HOME names, or `~/.detcloud` without this variable."""
        chosen = os.environ.get(HOME_VARIABLE)
        return cls(Path(chosen).expanduser().absolute()) if chosen else cls.of_user()

    @classmethod
    def of_user(cls) -> Home:
        """Return the folder `~/.detcloud`."""
        return cls(Path.home() / ".detcloud")

    @property
    def log(self) -> Path:
        """The path of the server's log."""
        return self.folder / "server.log"

    def create_folder(self) -> None:
        """Create the folder, accessible to the owner only, and a lock file. Keep an existing
        folder.

        Raises:
            DetcloudError: the folder cannot be created or written.
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
        """Return the running server. Wait first if a server is being started. Return None without a
        server.
        """
        if not self.folder.is_dir():
            return None
        with self.hold_lock(shared=True):
            return self.running_server_under_lock()

    def running_server_under_lock(self) -> ServerRecord | None:
        """Return the running server to a caller that holds the lock. Return None if none runs."""
        record = self.last_record()
        return record if record is not None and self._server_lock_is_held() else None

    def last_record(self) -> ServerRecord | None:
        """Return the record of the server that was started last, which may have ended since.

        Return None if `server.json` is missing or unreadable.
        """
        try:
            fields = json.loads((self.folder / "server.json").read_text("utf-8"))
            return ServerRecord(
                url=str(fields["url"]),
                pid=int(fields["pid"]),
                started_ms=int(fields["started_ms"]),
                version=str(fields["version"]),
            )
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    def state_url(self) -> str | None:
        """Return the URL of the database with the cluster's state, which may have a password.

        Return None if the state is in a file of the folder.

        Raises:
            DetcloudError: the record of the URL cannot be read.
        """
        path = self.folder / "state.json"
        try:
            return str(json.loads(path.read_bytes())["url"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            raise DetcloudError(
                f"{path} must have a JSON object with the field `url`; without the file, the "
                "cluster's state is in a file"
            ) from None

    def bucket_address(self) -> str | None:
        """Return the address of the bucket with the cluster's objects.

        Return None if the objects are in a folder, or if the record cannot be read.
        """
        try:
            return str(json.loads((self.folder / "files.json").read_bytes())["bucket"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    def token(self) -> str:
        """Return the token of the embedded cluster's user.

        Raises:
            DetcloudError: the file cannot be read or is not ASCII text.
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
        """Wait for the file lock `lock`, and hold the lock during the block.

        Exclusive by default, to start or stop a server; `shared` to look for one. Raises OSError if
        the folder does not exist.
        """
        with (self.folder / "lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
            yield

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
