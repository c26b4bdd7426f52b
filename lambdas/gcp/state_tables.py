"""Access of tools to a state table in Firestore, by the name PROJECT/DATABASE."""

from contextlib import AbstractContextManager, closing

from control_plane.gcp.firestore_client import create_client
from control_plane.gcp.state_table import FirestoreTable
from control_plane.state.table import TableError


def open_table(name: str) -> AbstractContextManager[FirestoreTable]:
    """Return a context manager that provides a table in Firestore and closes the table at the end.

    Raises TableError if the environment has no credentials or the name is not PROJECT/DATABASE. A
    missing database is not detected here: the first request raises TableError.
    """
    project, slash, database = name.partition("/")
    if not (project and slash and database):
        raise TableError(f"{name!r} names no table: expected PROJECT/DATABASE")
    return closing(FirestoreTable(create_client(project, database)))
