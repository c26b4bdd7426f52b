"""`python -m lambdas.restart`: make a restored state table of a deployed cluster safe to be used.

DynamoDB restores a table as it was at a moment of the last 35 days under another name. This is run
on it before any function uses it, with the person's own rights; docs/recovery.md says what else is
to be done. Prints a JSON object.
"""

import argparse
import json
import sys
from dataclasses import asdict

from control_plane.engine.engine import Engine
from control_plane.restoration.restart import begin_incarnation, read_next_ids
from control_plane.state.table import TableError
from lambdas.clock import now_ms
from lambdas.clouds import CLOUDS, DEFAULT_CLOUD, open_table


def main() -> int:
    """Restart the cluster from the table; 1 where a table cannot be read or written."""
    options = _options()
    try:
        given = None
        if options.newest:
            with open_table(options.cloud, options.newest) as newest:
                given = read_next_ids(newest)
        with open_table(options.cloud, options.table) as table:
            report = begin_incarnation(Engine(table, now_ms), given, _print_step)
    except (OSError, TableError) as error:
        tables = f"{options.table} and {options.newest}" if options.newest else options.table
        print(f"{tables}: {error}", file=sys.stderr)
        return 1
    print(json.dumps(asdict(report), indent=1))
    return 0


def _print_step(step: str) -> None:
    print(f"{step} ...", file=sys.stderr, flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m lambdas.restart")
    parser.add_argument("table", help="the restored table, which nothing uses yet")
    parser.add_argument(
        "--newest", metavar="TABLE", help="the table in use until now; its ids are skipped exactly"
    )
    parser.add_argument("--cloud", choices=CLOUDS, default=DEFAULT_CLOUD)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
