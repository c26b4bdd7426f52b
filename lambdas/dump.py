"""`python -m lambdas.dump`: print the stored rows of an actor or of any other partition.

The tool helps an operator to find faults of a cluster. It reads the table without the API, with
the operator's own rights. Secrets of configurations are masked without the option --with-secrets.
"""

import argparse
import json
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from control_plane.config.problems import ConfigInvalid
from control_plane.config.yaml_document import parse_document
from control_plane.fleet.rows import read_rows
from control_plane.state.sqlite import SqliteTable
from control_plane.state.table import TableError
from detcloud.shared.masking import MASK, mask_document
from lambdas.clouds import CLOUDS, DEFAULT_CLOUD, StoredRow, read_stored_rows

FIRST, LAST = "\x01", "\U0010ffff"


def main() -> int:
    """Print the rows of a partition as a JSON array, which is empty for an unknown partition.

    Secrets are masked without the option --with-secrets. Return the exit status: 0, or 1 if the
    table cannot be read. Errors go to stderr.
    """
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
    if not options.with_secrets:
        rows = [{**row, "body": mask_document(row["body"], _parse_config)} for row in rows]
        hidden = "secrets are masked; --with-secrets prints them"
        print(hidden, file=sys.stderr)
    print(json.dumps(rows, indent=1))
    return 0


def rows_in_file(path: Path, partition: str) -> list[dict[str, Any]]:
    """Return the rows of a partition in an embedded cluster's state table, as JSON values.

    The cluster may be running. Raises FileNotFoundError if the file does not exist, and TableError
    if it cannot be read as a state table.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no state table at {path}")
    with closing(SqliteTable(path)) as table:
        return [
            _row_fields(StoredRow(row.key.sort, row.revision, row.due_ms, row.body))
            for row in read_rows(table, partition, FIRST, LAST)
        ]


def rows_in_cloud(cloud: str, table: str, partition: str) -> list[dict[str, Any]]:
    """Return the rows of a partition in a deployed cluster's state table, as JSON values.

    The environment's credentials are used. Raises TableError if the table cannot be read.
    """
    return [_row_fields(row) for row in read_stored_rows(cloud, table, partition)]


def _row_fields(row: StoredRow) -> dict[str, Any]:
    """Return `sort`, `revision`, `due_ms` and `body` of a row, without `due_ms` if never due."""
    fields: dict[str, Any] = {"sort": row.sort, "revision": row.revision}
    if row.due_ms is not None:
        fields["due_ms"] = row.due_ms
    return {**fields, "body": _readable_body(row.body)}


def _readable_body(body: bytes) -> Any:
    """Return the JSON value of a body. Return a text if the body is not JSON.

    The text is the body if it is UTF-8, and otherwise the number of bytes.
    """
    try:
        return json.loads(body)
    except ValueError:
        pass
    try:
        return body.decode()
    except UnicodeDecodeError:
        return f"{len(body)} bytes"


def _parse_config(text: str) -> Any:
    """Parse the YAML text of a stored configuration; None for an empty text.

    Return MASK for an invalid text, because it may contain secrets.
    """
    try:
        return parse_document(text).tree
    except ConfigInvalid:
        return MASK


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m lambdas.dump", description=__doc__)
    parser.add_argument("partition", help="such as experiment#1 or pools")
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--table", help="a deployed cluster's table")
    place.add_argument("--file", type=Path, help="an embedded cluster's state table")
    parser.add_argument("--cloud", choices=CLOUDS, default=DEFAULT_CLOUD, help="of --table")
    parser.add_argument("--with-secrets", action="store_true", help="print secrets, too")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
