"""Recording of this version's journals: `python -m tests.journals.record`.

Run the recording before a release, and after intended changes of unreleased behaviour. The journals
of an older release are never recorded again, since today's code must replay them.
"""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import get_args

from control_plane.actors.messages.stored_names import stored_name
from control_plane.engine.actor_types import ACTOR_TYPES
from control_plane.engine.journal import decode_journal_row
from control_plane.state.table import Row
from detcloud import __version__
from simulator.checks.state_checker import StateChecker
from simulator.stepped.stepped_cluster import SteppedCluster
from tests.journals import journal_files, row_files
from tests.journals.scenarios import SCENARIOS_TO_RECORD


def main() -> int:
    """Record every scenario, and print the messages that no scenario contains."""
    recorded = {name: _record(play) for name, play in SCENARIOS_TO_RECORD.items()}
    folder = journal_files.FOLDER / __version__
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.json.gz"):
        old.unlink()
    for name, rows in recorded.items():
        path = folder / f"{name}.json.gz"
        journal_files.write_file(path, rows)
        print(f"{path.relative_to(journal_files.FOLDER)}: {path.stat().st_size:,} bytes")
    row_files.main()
    shapes = json.dumps(journal_files.current_shapes(), indent=1, sort_keys=True)
    (folder / journal_files.SHAPES).write_text(f"{shapes}\n", encoding="utf-8")
    heard = {name for rows in recorded.values() for row in rows for name in _message_names(row)}
    known = {
        stored_name(message)
        for actor_type in ACTOR_TYPES.values()
        for message in get_args(actor_type.message_union)
    }
    print(f"messages in none of them: {', '.join(sorted(known - heard)) or 'none'}")
    return 0


def _record(play: Callable[[SteppedCluster], None]) -> list[Row]:
    with TemporaryDirectory(prefix="detcloud-journals-") as home:
        # The simulation checks invariants after each commit; a recording does not.
        cluster = SteppedCluster(Path(home) / "table.db", checker=StateChecker(unchecked=True))
        try:
            play(cluster)
        finally:
            cluster.close()
    return [Row(put.key, put.revision, put.body) for put in cluster.checker.rows.values()]


def _message_names(row: Row) -> Iterator[str]:
    if not row.key.sort.startswith("Z#0"):
        return
    entry = decode_journal_row(row.body)
    for named in (*(x for mail in entry["in"] for x in mail["messages"]), *entry["command"]):
        yield named[0]


if __name__ == "__main__":
    sys.exit(main())
