"""The clouds whose functions can run a cluster: the registry of hosts.

A new cloud adds its name here, and its folder of that name: its adapters, its functions' entry
points, `stored_rows`, which reads a table as it is stored, and `state_tables`, which opens one.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any, Final, NamedTuple

from control_plane.state.table import StateTable

CLOUDS: Final = ("aws", "gcp")
# Whose table is read where nobody says.
DEFAULT_CLOUD: Final = "aws"


class StoredRow(NamedTuple):
    """A row as a cloud's table stores it. `due_ms`: when it is due, None for never."""

    sort: str
    revision: int
    due_ms: int | None
    body: bytes


def read_stored_rows(cloud: str, table: str, partition: str) -> Iterator[StoredRow]:
    """Read a partition past the cluster, with the environment's credentials. Raises TableError."""
    module: Any = import_module(f"lambdas.{cloud}.stored_rows")
    rows: Iterator[StoredRow] = module.read_stored_rows(table, partition)
    return rows


def open_table(cloud: str, name: str) -> AbstractContextManager[StateTable]:
    """Open a state table past the cluster, with the environment's credentials, for a block."""
    module: Any = import_module(f"lambdas.{cloud}.state_tables")
    table: AbstractContextManager[StateTable] = module.open_table(name)
    return table
