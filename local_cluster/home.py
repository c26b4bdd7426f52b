"""The data folder of an embedded cluster.

    server.lock   locked by the running server
    server.json   the address of the running server, deleted when the server stops
    port.json     the port of the last server
    agent.json    the process of the last agent
    token         the user's token
    agent.token   the token of the machine's own agent
    signing.key   the key of signed URLs
    server.pem    the key and the self-signed certificate of a server for other machines
    shared-certificate.json    present if server.pem is the certificate of a group of servers
    state.json    the URL of the database with the state, if the state is not in state.db
    files.json    the folder with objects/, checkpoints/ and files-id, if it is another folder,
                  and the bucket that replaces objects/, if any
    files-id      the id of the folder with objects/ and checkpoints/, if servers share it
    id.json       the id of the data folder
    clouds.json   the remote accounts for pools in clouds, if any
    state.db, objects/, checkpoints/, agent/

After a crash, the next server uses the remaining files.
"""

import fcntl
import json
import os
import re
import uuid
from pathlib import Path
from typing import Any, BinaryIO

from control_plane.local.state_places import StatePlace, find_state_place, read_state_url
from detcloud.shared.tokens import mint_token

FILES_ID = "files-id"
# The form of secrets, also of secrets that a user writes. A shorter secret could be guessed.
_SECRET = re.compile(r"[A-Za-z0-9._~+/=-]{32,256}")


class HomeInUse(Exception):
    """The folder is locked by another running server."""


class HomeInvalid(Exception):
    """A file in the folder has invalid content. The message names the file."""


class HomeFolder:
    """The data folder of a cluster, accessible by the owner only.

    The constructor creates a missing folder and restricts the access. Raises OSError if the folder
    cannot be created or changed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.expanduser().absolute()
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder.chmod(0o700)

    @property
    def state(self) -> StatePlace:
        """The place of the state table. Raises Unavailable if its record is invalid."""
        return find_state_place(self.folder)

    def state_url(self) -> str | None:
        """Return the URL of the database with the state. None if the state is in `state.db`.

        Raises Unavailable if the record is damaged.
        """
        return read_state_url(self.folder)

    def set_state_url(self, url: str | None) -> None:
        """Record that the state is in the database at `url`, or in `state.db`. Raises OSError."""
        if url is None:
            self.remove_record("state")
        else:
            self.write_record("state", {"url": url})

    @property
    def files(self) -> Path:
        """The folder with the folders of objects and checkpoints, by default the data folder."""
        chosen = self.read_record("files").get("folder")
        return Path(chosen) if isinstance(chosen, str) else self.folder

    @property
    def bucket(self) -> tuple[str | None, str | None]:
        """The address of the bucket with the objects, and the file with the credentials, if any."""
        fields = self.read_record("files")
        address, credentials = fields.get("bucket"), fields.get("credentials")
        if not isinstance(address, str):
            return None, None
        return address, credentials if isinstance(credentials, str) else None

    def set_bucket(self, address: str | None, credentials: str | None = None) -> None:
        """Record the bucket with the objects, or the folder `objects`. Raises OSError.

        The folder of checkpoints stays.

        Args:
            address: the address in the form of `parse_bucket_address`. None for the folder.
            credentials: the path of the file with the credentials, or None.
        """
        places = {"bucket": address, "credentials": credentials}
        given = {name: value for name, value in places.items() if value is not None}
        fields = self.read_record("files")
        kept = {name: value for name, value in fields.items() if name not in places}
        self.write_record("files", {**kept, **given})

    def has_objects(self) -> bool:
        """Return whether the folder `objects` has files or folders."""
        return any(self.objects.glob("[!.]*"))

    def set_files(self, folder: Path) -> None:
        """Record another folder for objects and checkpoints.

        Raises HomeInvalid if the present folder has objects and the other folder has none. Raises
        OSError.
        """
        chosen = folder.expanduser().absolute()
        if chosen == self.files:
            return
        if self.bucket[0] is None and self.has_objects() and not (chosen / "objects").is_dir():
            raise HomeInvalid(
                f"{self.files} has the objects of this cluster; copy the folders `objects` and "
                f"`checkpoints` to {chosen} first"
            )
        chosen.mkdir(mode=0o700, parents=True, exist_ok=True)
        marker = self.files / FILES_ID
        if marker.exists() and not (chosen / FILES_ID).exists():
            # Servers that use the former folder are refused from now on.
            (chosen / FILES_ID).write_bytes(marker.read_bytes())
            marker.unlink()
        self.write_record("files", {**self.read_record("files"), "folder": str(chosen)})

    def files_id(self) -> str | None:
        """Return the id of the folder with objects and checkpoints. Return None without an id.

        Raises OSError if the file cannot be read.
        """
        try:
            return (self.files / FILES_ID).read_text(encoding="ascii").strip() or None
        except (FileNotFoundError, ValueError):
            return None

    def load_or_create_files_id(self) -> str:
        """Return the id of the folder with objects and checkpoints. Write a missing id.

        Raises OSError.
        """
        known = self.files_id()
        if known is None:
            known = uuid.uuid4().hex
            self.write_files_id(known)
        return known

    def write_files_id(self, files_id: str) -> None:
        """Write the id of the folder with objects and checkpoints. Raises OSError."""
        (self.files / FILES_ID).write_text(f"{files_id}\n", encoding="ascii")

    @property
    def objects(self) -> Path:
        """The folder of model code, logs and metrics, which may not exist yet."""
        return self.files / "objects"

    @property
    def checkpoints(self) -> Path:
        """The folder of the default checkpoint store, which may not exist yet."""
        return self.files / "checkpoints"

    def load_or_create_id(self) -> str:
        """Return the random id of the data folder. Write a new id on first use. Raises OSError."""
        known = self.read_record("id").get("id")
        if isinstance(known, str) and known:
            return known
        fresh = uuid.uuid4().hex
        self.write_record("id", {"id": fresh})
        return fresh

    @property
    def agent(self) -> Path:
        """The working folder of the machine's own agent, which may not exist yet."""
        return self.folder / "agent"

    def claim(self) -> BinaryIO:
        """Lock the folder for a server, without waiting, and return the open lock file.

        Closing the file releases the lock. Raises HomeInUse if another process holds the lock, and
        OSError if the lock file cannot be opened.
        """
        lock = (self.folder / "server.lock").open("ab")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise HomeInUse(f"a server runs on {self.folder} already") from None
        return lock

    def load_or_create_secret(self, name: str) -> str:
        """Return the secret in the file `name`, without surrounding whitespace.

        Write a new random secret if the file is missing or blank. Make the file readable by its
        owner only. Raises HomeInvalid if the content is not a secret, and OSError.
        """
        path = self.folder / name
        if not path.exists() or not path.read_bytes().strip():
            self.write_text(name, f"{mint_token()}\n")
        path.chmod(0o600)
        secret = path.read_bytes().decode("ascii", "replace").strip()
        if not _SECRET.fullmatch(secret):
            raise HomeInvalid(
                f"{path} must hold 32 to 256 letters, digits and ._~+/=-, and nothing else; "
                "without the file a new secret is made"
            )
        return secret

    def read_secret(self, name: str) -> str | None:
        """Return the secret in the file `name`. Return None for a missing or blank file.

        Raises HomeInvalid if the content is not a secret, and OSError.
        """
        path = self.folder / name
        is_present = path.exists() and path.read_bytes().strip()
        return self.load_or_create_secret(name) if is_present else None

    def write_secret(self, name: str, secret: str) -> None:
        """Write or replace the secret in the file `name`. Raises OSError."""
        self.write_text(name, f"{secret}\n")

    def read_record(self, name: str) -> dict[str, Any]:
        """Read the fields of the record `NAME.json`.

        Return an empty dictionary if the file is missing, unreadable or not a JSON object.
        """
        try:
            fields = json.loads((self.folder / f"{name}.json").read_bytes())
        except (OSError, ValueError, RecursionError):
            return {}
        return fields if isinstance(fields, dict) else {}

    def write_record(self, name: str, fields: dict[str, Any]) -> None:
        """Write or replace the record `NAME.json`. Raises OSError.

        A reader sees either the old record or the new record.
        """
        self.write_text(f"{name}.json", json.dumps(fields) + "\n")

    def remove_record(self, name: str) -> None:
        """Delete the record `NAME.json`. Do nothing if the file is missing. Raises OSError."""
        (self.folder / f"{name}.json").unlink(missing_ok=True)

    def write_text(self, name: str, text: str) -> None:
        """Write or replace the file `name` atomically and durably, readable by the owner only.

        Raises OSError. The former file then stays.
        """
        fresh = self.folder / f".{name}.new"
        fresh.unlink(missing_ok=True)
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self.folder / name)
