"""`python -m lambdas.restart`: make a restored state table of a deployed cluster safe to use.

DynamoDB can restore the table's content of any time in the last 35 days, as a table with a new
name. An operator runs this tool on the restored table, with his own rights, before any function
uses the table. The other steps are in docs/recovery.md. The tool prints a JSON object.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from control_plane.engine.engine import Engine
from control_plane.restoration.restart import begin_incarnation, read_next_ids
from control_plane.state.table import TableError
from lambdas.clock import now_ms
from lambdas.clouds import CLOUDS, DEFAULT_CLOUD, open_table


def main(arguments: Sequence[str] | None = None) -> int:
    """Prepare the restored table for use, and print a report as JSON.

    Skip ids, mark all agents as lost, process the due mail, notify the experiments, and start a new
    incarnation. With --newest, read the ids to skip from that table. Return the exit status: 0, or
    1 if a table cannot be read or written. Progress and errors go to stderr. A second run after an
    error repeats the steps.
    """
    options = _options(arguments)
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
    """Print the name of the step that begins to stderr."""
    print(f"{step} ...", file=sys.stderr, flush=True)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options in `arguments`, by default of the command line.

    Invalid options end the process with status 2.

    `table` and `newest` are names of tables. `newest` is None without the option. `cloud` is a name
    in CLOUDS.
    """
    parser = argparse.ArgumentParser(prog="python -m lambdas.restart")
    parser.add_argument("table", help="the restored table, which no cluster uses yet")
    parser.add_argument(
        "--newest", metavar="TABLE", help="the table in use until now; its ids are skipped exactly"
    )
    parser.add_argument("--cloud", choices=CLOUDS, default=DEFAULT_CLOUD)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
