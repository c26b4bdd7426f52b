"""The place of an embedded cluster's state: a file in the data folder, or a database.

The record `state.json` in the data folder names the database. Without the record, the state is in
the file `state.db`. Backups are files in both cases, so that a backup moves a cluster from one
place to the other.
"""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from control_plane.state.sqlite import (
    SqliteTable,
    copy_table_file,
    read_table_file,
    write_table_file,
)
from control_plane.state.table import StateTable, TableError, Unavailable

if TYPE_CHECKING:
    from control_plane.postgres.server_link import LinkListener, ServerLink
    from control_plane.postgres.state_table import PostgresTable

RECORD = "state.json"
FILE = "state.db"
SCHEMES = ("postgresql", "postgres")
PACKAGES = ("psycopg", "psycopg_pool")
_LOG_SUFFIXES = ("-wal", "-shm")


class StateInUse(TableError):
    """Another process uses the state."""


class OpenTable(StateTable, Protocol):
    """A state table with connections that can be closed."""

    def close(self) -> None:
        """Close all connections. The table cannot be used afterwards."""


class StatePlace(Protocol):
    """A place of the state. All methods raise Unavailable, and OSError for a file."""

    @property
    def name(self) -> str:
        """The name of the place for messages, without a password."""

    def exists(self) -> bool:
        """Return whether the place has a state."""

    def open(self) -> OpenTable:
        """Open the state. Create a missing state."""

    @property
    def is_shareable(self) -> bool:
        """Whether two or more servers may use the state at the same time."""

    def claim(self, *, is_shared: bool = False) -> AbstractContextManager[None]:
        """Claim the state during a block. Raises StateInUse.

        Args:
            is_shared: the claim of a server, which allows other servers if the state is shareable.
        """

    def claim_folder(self, folder_id: str) -> AbstractContextManager[None]:
        """Claim the id of a data folder during a block, so that no copy of the folder is used.

        Raises StateInUse.
        """

    def starting(self) -> AbstractContextManager[None]:
        """Let no other server of the state start during a block."""

    def has_other_servers(self) -> bool:
        """Return whether another server has a claim. The caller has the claim of a server."""

    def link(self, listener: "LinkListener") -> "ServerLink | None":
        """Return a link between the servers of the state, not started yet.

        Return None if the state is not shareable.
        """

    def size_bytes(self) -> int:
        """Return the approximate size of the state."""

    def copy_to(self, target: Path) -> None:
        """Copy the state of a single moment to a new file of SQLite."""

    def replace_by(self, source: Path) -> None:
        """Replace the state by the file of SQLite `source`, which may be moved."""

    def retire(self, label: str) -> None:
        """Remove the state after a copy to another place. A file is renamed instead.

        Args:
            label: a part of the file's new name.
        """

    def delete(self) -> None:
        """Delete the state."""


class FilePlace:
    """The state in the file FILE of a data folder."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE

    @property
    def name(self) -> str:
        """The path of the file."""
        return str(self._path)

    def exists(self) -> bool:
        """Return whether the file exists."""
        return self._path.exists()

    def open(self) -> SqliteTable:
        """Open the file. Create a missing file."""
        return SqliteTable(self._path)

    is_shareable = False

    @contextmanager
    def claim(self, *, is_shared: bool = False) -> Iterator[None]:
        """Do nothing, because the lock of the data folder excludes other servers."""
        yield

    @contextmanager
    def claim_folder(self, folder_id: str) -> Iterator[None]:
        """Do nothing, because the state is in the folder."""
        yield

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Do nothing, because the lock of the data folder excludes other servers."""
        yield

    def has_other_servers(self) -> bool:
        """Return False, because a file has a single server."""
        return False

    def link(self, listener: "LinkListener") -> None:
        """Return None: a file has a single server."""

    def size_bytes(self) -> int:
        """Return the size of the file without the log."""
        return self._path.stat().st_size

    def copy_to(self, target: Path) -> None:
        """Copy the state of a single moment to a new file. Copy a damaged state byte by byte."""
        try:
            copy_table_file(self._path, target)
        except TableError:
            shutil.copyfile(self._path, target)
            raise

    def replace_by(self, source: Path) -> None:
        """Rename the file `source`, which replaces the state."""
        self._delete_log()
        with source.open("rb") as file:
            os.fsync(file.fileno())
        source.replace(self._path)

    def retire(self, label: str) -> None:
        """Rename the closed file to `state-LABEL.db`."""
        # The log of a closed file is empty.
        self._delete_log()
        self._path.rename(self._path.with_name(f"state-{label}.db"))

    def delete(self) -> None:
        """Delete the file and the log."""
        self._path.unlink(missing_ok=True)
        self._delete_log()

    def _delete_log(self) -> None:
        """Delete the log of the closed file."""
        for suffix in _LOG_SUFFIXES:
            Path(f"{self._path}{suffix}").unlink(missing_ok=True)


class DatabasePlace:
    """The state in a database of PostgreSQL.

    Args:
        url: the URL of the database, which may have a password.
    """

    def __init__(self, url: str) -> None:
        self._url = url

    @property
    def name(self) -> str:
        """The name and the host of the database, without user and password."""
        parts = urlsplit(self._url)
        database = parts.path.lstrip("/") or "default"
        return f"the database {database} of {parts.hostname or 'this machine'}"

    def exists(self) -> bool:
        """Return whether the table has a row."""
        with closing(self.open()) as table:
            return table.has_rows()

    def open(self) -> "PostgresTable":
        """Connect to the database, and create a missing table."""
        from control_plane.postgres.state_table import PostgresTable

        return PostgresTable(self._url)

    is_shareable = True

    @contextmanager
    def claim(self, *, is_shared: bool = False) -> Iterator[None]:
        """Claim the table during the block. Raises StateInUse."""
        with closing(self.open()) as table, table.claim(is_shared=is_shared) as is_claimed:
            if not is_claimed and is_shared:
                raise StateInUse(
                    f"the state in {self.name} is being replaced, or a server of an earlier "
                    "version uses the state; try again after its end"
                )
            if not is_claimed:
                raise StateInUse(
                    f"a server uses the state in {self.name}; stop all servers of the state first"
                )
            yield

    @contextmanager
    def claim_folder(self, folder_id: str) -> Iterator[None]:
        """Claim the id of a data folder during the block. Raises StateInUse."""
        with closing(self.open()) as table, table.claim_name(folder_id) as is_claimed:
            if not is_claimed:
                raise StateInUse(
                    "a server with a copy of this data folder uses the state; delete id.json in "
                    "the copy, or try again in 15 seconds if that machine has just ended"
                )
            yield

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Let no other server of the table start during the block."""
        with closing(self.open()) as table, table.starting():
            yield

    def has_other_servers(self) -> bool:
        """Return whether another server has a claim. The caller has the claim of a server."""
        with closing(self.open()) as table:
            return table.count_shared_claims() > 1

    def link(self, listener: "LinkListener") -> "ServerLink":
        """Return a link between the servers of the table, not started yet."""
        from control_plane.postgres.server_link import ServerLink

        with closing(self.open()) as table:
            return ServerLink(self._url, table.schema, listener)

    def size_bytes(self) -> int:
        """Return the size of the rows and indexes."""
        with closing(self.open()) as table:
            return table.size_bytes()

    def copy_to(self, target: Path) -> None:
        """Copy the rows of a single moment to a new file of SQLite."""
        with closing(self.open()) as table:
            write_table_file(target, table.read_all())

    def replace_by(self, source: Path) -> None:
        """Replace all rows by the rows of the file `source`, in a single transaction."""
        with closing(self.open()) as table:
            table.replace_all(read_table_file(source))

    def retire(self, label: str) -> None:
        """Delete the table."""
        self.delete()

    def delete(self) -> None:
        """Delete the table."""
        with closing(self.open()) as table:
            table.drop()


def find_state_place(folder: Path) -> StatePlace:
    """Return the place of the state of the cluster in a data folder.

    Raises Unavailable if the record of a database is damaged, or a package is missing.
    """
    url = read_state_url(folder)
    return FilePlace(folder) if url is None else database_place(url)


def read_state_url(folder: Path) -> str | None:
    """Return the URL in the record of a data folder. None if the state is in a file.

    Raises Unavailable if the record is unreadable or damaged.
    """
    try:
        return str(json.loads((folder / RECORD).read_bytes())["url"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise Unavailable(
            f"{folder / RECORD} must have a JSON object with the field `url`; without the file, "
            f"the state is in {FILE}"
        ) from None


def database_place(url: str) -> DatabasePlace:
    """Return the place for the URL of a database. Raises Unavailable if the URL is no URL of
    PostgreSQL, or a package is missing.
    """
    if urlsplit(url).scheme not in SCHEMES:
        raise Unavailable(
            "the URL of the state must begin with postgresql://, as in "
            "postgresql://USER@HOST:5432/DATABASE"
        )
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        names = " and ".join(missing)
        raise Unavailable(f"state on PostgreSQL needs {names}; pip install 'detcloud[postgres]'")
    return DatabasePlace(url)
