"""The registry of the clouds whose functions can run a cluster.

A new cloud adds its name here, and a folder with this name. The folder contains the adapters, the
entry points of the functions, `stored_rows` and `state_tables`.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any, Final, NamedTuple

from control_plane.state.table import StateTable

CLOUDS: Final = ("aws", "gcp")
# The default of the tools that read a deployed table.
DEFAULT_CLOUD: Final = "aws"


class StoredRow(NamedTuple):
    """A row as a cloud's table stores the row, without the partition."""

    sort: str
    """The sort key."""
    revision: int
    """The revision, which each write of the row increases."""
    due_ms: int | None
    """The time at which the row is due, in epoch ms. None if the row is never due."""
    body: bytes
    """The encoded record; docs/state.md declares the records."""


def read_stored_rows(cloud: str, table: str, partition: str) -> Iterator[StoredRow]:
    """Yield the rows of a partition directly from a cloud's table, without the cluster's API.

    The environment's credentials are used. Yield nothing for an empty partition. Raises TableError
    during the iteration if the table cannot be read.

    Args:
        cloud: a name in CLOUDS.
        table: the table's name in this cloud. On Google Cloud, `PROJECT/DATABASE`.
    """
    module: Any = import_module(f"lambdas.{cloud}.stored_rows")
    rows: Iterator[StoredRow] = module.read_stored_rows(table, partition)
    return rows


def open_table(cloud: str, name: str) -> AbstractContextManager[StateTable]:
    """Return a context manager that opens a cloud's state table and closes the table at the end.

    The table is opened directly with the environment's credentials, without the cluster's API. A
    missing table is noticed by the first request, which raises TableError. Raises TableError
    without a region on AWS, and for an invalid name or missing credentials on Google Cloud.

    Args:
        cloud: a name in CLOUDS.
        name: the table's name in this cloud. On Google Cloud, `PROJECT/DATABASE`.
    """
    module: Any = import_module(f"lambdas.{cloud}.state_tables")
    table: AbstractContextManager[StateTable] = module.open_table(name)
    return table
