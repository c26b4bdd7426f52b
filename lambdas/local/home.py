"""The data folder of an embedded cluster, as its server sees it.

    server.lock   held for the server's whole life
    server.json   its address; written when it listens, removed when it stops
    agent.json    the agent it started last
    token         the user's; agent.token, signing.key: the cluster's own
    state.db, objects/, checkpoints/, agent/

The next start finds and uses whatever a crash left.
"""

import fcntl
import json
import os
import re
from pathlib import Path
from typing import Any, BinaryIO

from detcloud.shared.tokens import mint_token

# Secrets as the server makes them, or a user who has reasons to: nothing that can be guessed.
_SECRET = re.compile(r"[A-Za-z0-9._~+/=-]{32,256}")


class HomeInUse(Exception):
    """The folder belongs to another server, which runs."""


class HomeInvalid(Exception):
    """A file of the folder has a content that it cannot have."""


class HomeFolder:
    """The folder, created when missing and closed to others. Raises OSError where it cannot be."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.expanduser().absolute()
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder.chmod(0o700)

    @property
    def state(self) -> Path:
        return self.folder / "state.db"

    @property
    def objects(self) -> Path:
        return self.folder / "objects"

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def agent(self) -> Path:
        return self.folder / "agent"

    def claim(self) -> BinaryIO:
        """Take the server's lock, which is ours until the returned file is closed.

        Raises:
            HomeInUse: another process has it.
        """
        lock = (self.folder / "server.lock").open("ab")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise HomeInUse(f"a server runs on {self.folder} already") from None
        return lock

    def load_or_create_secret(self, name: str) -> str:
        """Return the secret in the file `name`, which the first call creates.

        Raises:
            HomeInvalid: there is something else in it.
        """
        path = self.folder / name
        if not path.exists() or not path.read_bytes().strip():
            self._write(name, f"{mint_token()}\n")
        path.chmod(0o600)
        secret = path.read_bytes().decode("ascii", "replace").strip()
        if not _SECRET.fullmatch(secret):
            raise HomeInvalid(
                f"{path} must hold 32 to 256 letters, digits and ._~+/=-, and nothing else; "
                "without the file a new secret is made"
            )
        return secret

    def read_record(self, name: str) -> dict[str, Any]:
        """Read the record in `NAME.json`; empty where there is none."""
        try:
            fields = json.loads((self.folder / f"{name}.json").read_bytes())
        except (OSError, ValueError, RecursionError):
            return {}
        return fields if isinstance(fields, dict) else {}

    def write_record(self, name: str, fields: dict[str, Any]) -> None:
        """Replace the record: a reader sees the former one or this one."""
        self._write(f"{name}.json", json.dumps(fields) + "\n")

    def remove_record(self, name: str) -> None:
        """Remove the record."""
        (self.folder / f"{name}.json").unlink(missing_ok=True)

    def _write(self, name: str, text: str) -> None:
        fresh = self.folder / f".{name}.new"
        fresh.unlink(missing_ok=True)
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self.folder / name)
