"""Connections of an SQLite table, for tests of a full, broken or slow disk."""

import sqlite3
from pathlib import Path
from typing import Generic, TypeVar

from control_plane.state.sqlite import open_connection

Kind = TypeVar("Kind", bound=sqlite3.Connection)


class Disk(Generic[Kind]):
    """The opener of a table's connections, which records them.

    Args:
        kind: the class of the connections.
    """

    def __init__(self, kind: type[Kind]) -> None:
        self.connections: list[Kind] = []
        """The connections, the table's main connection first."""
        self._kind = kind

    def connect(self, path: Path | str) -> sqlite3.Connection:
        connection = open_connection(path, self._kind)
        assert isinstance(connection, self._kind)
        self.connections.append(connection)
        return connection
