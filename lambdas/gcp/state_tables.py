"""A state table in Firestore by its name, PROJECT/DATABASE, for tools."""

from contextlib import AbstractContextManager, closing

from control_plane.gcp.firestore_client import create_client
from control_plane.gcp.state_table import FirestoreTable
from control_plane.state.table import TableError


def open_table(name: str) -> AbstractContextManager[FirestoreTable]:
    """Open a table for a block, with the environment's credentials. Raises TableError."""
    project, slash, database = name.partition("/")
    if not (project and slash and database):
        raise TableError(f"{name!r} names no table: expected PROJECT/DATABASE")
    return closing(FirestoreTable(create_client(project, database)))
