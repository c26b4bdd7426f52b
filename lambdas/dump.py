"""`python -m lambdas.dump`: print the stored rows of an actor or of any other partition.

The tool helps an operator to find faults of a cluster. It reads the table without the API, with
the operator's own rights. Secrets of configurations are masked without the option --with-secrets.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from control_plane.local.state_places import StatePlace, find_state_place
from control_plane.rows.registry import find_row_type
from control_plane.state.row_ranges import read_rows
from control_plane.state.table import TableError
from lambdas.clouds import CLOUDS, DEFAULT_CLOUD, StoredRow, read_stored_rows
from lambdas.readable_rows import decode_body, mask_body

FIRST, LAST = "\x01", "\U0010ffff"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the rows of a partition as a JSON array, which is empty for an unknown partition.

    Secrets are masked without the option --with-secrets. Return the exit status: 0, or 1 if the
    table cannot be read. Errors go to stderr.
    """
    options = _options(arguments)
    try:
        rows = (
            rows_in_cloud(options.cloud, options.table, options.partition)
            if options.table
            else rows_at(find_state_place(options.home), options.partition)
        )
    except (OSError, TableError) as error:
        print(error, file=sys.stderr)
        return 1
    if not options.with_secrets:
        rows = [_mask_row(options.partition, row) for row in rows]
        hidden = "secrets are masked; --with-secrets prints them"
        print(hidden, file=sys.stderr)
    print(json.dumps(rows, indent=1))
    return 0


def rows_at(place: StatePlace, partition: str) -> list[dict[str, Any]]:
    """Return the rows of a partition in an embedded cluster's state table, as JSON values.

    The cluster may be running. Return [] for an empty partition. Raises FileNotFoundError if the
    place has no state, and TableError if it cannot be read as a state table.
    """
    if not place.exists():
        raise FileNotFoundError(f"no state table exists at {place.name}")
    with closing(place.open()) as table:
        return [
            _row_fields(partition, StoredRow(row.key.sort, row.revision, row.due_ms, row.body))
            for row in read_rows(table, partition, FIRST, LAST)
        ]


def rows_in_cloud(cloud: str, table: str, partition: str) -> list[dict[str, Any]]:
    """Return the rows of a partition in a deployed cluster's state table, as JSON values.

    The environment's credentials are used. Return [] for an empty partition. Raises TableError if
    the table cannot be read.

    Args:
        cloud: a name in CLOUDS.
        table: the table's name in this cloud. On Google Cloud, `PROJECT/DATABASE`.
    """
    return [_row_fields(partition, row) for row in read_stored_rows(cloud, table, partition)]


def _row_fields(partition: str, row: StoredRow) -> dict[str, Any]:
    """Return `sort`, `type`, `revision`, `due_ms` and the decoded `body` of a row.

    `type` is the row's name in docs/state.md, missing for an undeclared row. `due_ms` is missing if
    the row is never due. `body` is a text if the body cannot be decoded.
    """
    row_type = find_row_type(partition, row.sort)
    fields: dict[str, Any] = {"sort": row.sort}
    if row_type is not None:
        fields["type"] = row_type.name
    fields["revision"] = row.revision
    if row.due_ms is not None:
        fields["due_ms"] = row.due_ms
    return {**fields, "body": decode_body(row_type, row.body)}


def _mask_row(partition: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a row's printed fields, with the secrets of `body` masked."""
    row_type = find_row_type(partition, row["sort"])
    return {**row, "body": mask_body(row_type, row["body"])}


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options in `arguments`, by default of the command line.

    Invalid options end the process with status 2.

    The options are `partition`, `cloud`, `with_secrets`, and either `table` or `home`. The other of
    these two is None.
    """
    parser = argparse.ArgumentParser(prog="python -m lambdas.dump", description=__doc__)
    parser.add_argument("partition", help="the partition, such as experiment#1 or pools")
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--table", help="a deployed cluster's table")
    place.add_argument("--home", type=Path, help="an embedded cluster's data folder")
    parser.add_argument(
        "--cloud", choices=CLOUDS, default=DEFAULT_CLOUD, help="the cloud of --table"
    )
    parser.add_argument("--with-secrets", action="store_true", help="print secrets, too")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
