"""`python -m lambdas.dump`: the rows of an actor, or of any partition, as they are stored.

For an operator who looks into a cluster that misbehaves. The table is read past the API, with the
operator's own rights, and all of it is printed, secrets of configurations too.
"""

import argparse
import json
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from control_plane.fleet.rows import read_rows
from control_plane.state.sqlite import SqliteTable
from control_plane.state.table import TableError
from lambdas.clouds import CLOUDS, DEFAULT_CLOUD, StoredRow, read_stored_rows

FIRST, LAST = "\x01", "\U0010ffff"


def main() -> int:
    """Print a JSON array; 1 where the table cannot be read."""
    options = _options()
    try:
        rows = (
            rows_in_cloud(options.cloud, options.table, options.partition)
            if options.table
            else rows_in_file(options.file, options.partition)
        )
    except (OSError, TableError) as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(rows, indent=1))
    return 0


def rows_in_file(path: Path, partition: str) -> list[dict[str, Any]]:
    """Return the partition's rows in an embedded cluster's file, which may be in use."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no state table at {path}")
    with closing(SqliteTable(path)) as table:
        return [
            _row_fields(StoredRow(row.key.sort, row.revision, row.due_ms, row.body))
            for row in read_rows(table, partition, FIRST, LAST)
        ]


def rows_in_cloud(cloud: str, table: str, partition: str) -> list[dict[str, Any]]:
    """Return the partition's rows in a deployed cluster's table, read with the environment's
    credentials.
    """
    return [_row_fields(row) for row in read_stored_rows(cloud, table, partition)]


def _row_fields(row: StoredRow) -> dict[str, Any]:
    fields: dict[str, Any] = {"sort": row.sort, "revision": row.revision}
    if row.due_ms is not None:
        fields["due_ms"] = row.due_ms
    return {**fields, "body": _readable_body(row.body)}


def _readable_body(body: bytes) -> Any:
    """Return a body as people can read it: JSON, text, or how many bytes it has."""
    try:
        return json.loads(body)
    except ValueError:
        pass
    try:
        return body.decode()
    except UnicodeDecodeError:
        return f"{len(body)} bytes"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m lambdas.dump", description=__doc__)
    parser.add_argument("partition", help="such as experiment#1 or pools")
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--table", help="a deployed cluster's table")
    place.add_argument("--file", type=Path, help="an embedded cluster's state table")
    parser.add_argument("--cloud", choices=CLOUDS, default=DEFAULT_CLOUD, help="of --table")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
