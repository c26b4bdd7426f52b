"""`python -m lambdas.dump`: the rows of an actor, or of any partition, as they are stored.

For whoever looks into a cluster that misbehaves. It reads the table past the API, with the person's
own rights, and prints what is there: secrets of configurations among it.
"""

import argparse
import json
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from control_plane.fleet.rows import read_all
from control_plane.state.sqlite import SqliteTable
from control_plane.state.table import TableError

FIRST, LAST = "\x01", "\U0010ffff"


def main() -> int:
    """Prints a JSON array; 1 where the table cannot be read."""
    options = _options()
    try:
        found = (
            dumped_from_dynamodb(options.table, options.partition)
            if options.table
            else dumped_from_file(options.file, options.partition)
        )
    except (OSError, TableError) as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(found, indent=1))
    return 0


def dumped_from_file(path: Path, partition: str) -> list[dict[str, Any]]:
    """The partition's rows in an embedded cluster's file, which may be in use."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no state table at {path}")
    with closing(SqliteTable(path)) as table:
        return [
            _plain(row.key.sort, row.revision, row.due_ms, row.body)
            for row in read_all(table, partition, FIRST, LAST)
        ]


def dumped_from_dynamodb(name: str, partition: str) -> list[dict[str, Any]]:
    """The same of a deployed cluster's table, with the environment's region and credentials."""
    from dynamodb_json import json_util

    from control_plane.state.dynamodb import raw_items

    found = []
    for item in raw_items(name, partition):
        fields = json_util.loads({key: value for key, value in item.items() if key != "b"})
        found.append(_plain(fields["s"], fields["r"], fields.get("d"), item["b"]["B"]))
    return found


def _plain(sort: str, revision: int, due_ms: int | None, body: bytes) -> dict[str, Any]:
    fields: dict[str, Any] = {"sort": sort, "revision": revision}
    if due_ms is not None:
        fields["due_ms"] = due_ms
    return {**fields, "body": _read(body)}


def _read(body: bytes) -> Any:
    """A body as people can read it: JSON, text, or how many bytes it has."""
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
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
