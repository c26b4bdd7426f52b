"""`python -m tests.journals.record`: records the journals of this version anew.

Run it before a release, and whenever what the unreleased version does has changed on purpose. The
journals of a release that is out are never recorded again: that they replay is the promise.
"""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import get_args

from control_plane.dispatch.journal import read_row
from control_plane.dispatch.kinds import KINDS
from control_plane.state.table import Row
from detcloud import __version__
from lambdas.simulation.watch import Shadow
from tests.journals import kept
from tests.journals.scenarios import RECORDED
from tests.simulation.cluster import Cluster


def main() -> int:
    """Records every scenario, and says which messages none of them has."""
    recorded = {name: _recorded(play) for name, play in RECORDED.items()}
    folder = kept.FOLDER / __version__
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.json.gz"):
        old.unlink()
    for name, rows in recorded.items():
        path = folder / f"{name}.json.gz"
        kept.write(path, rows)
        print(f"{path.relative_to(kept.FOLDER)}: {path.stat().st_size:,} bytes")
    shapes = json.dumps(kept.shapes(), indent=1, sort_keys=True)
    (folder / kept.SHAPES).write_text(f"{shapes}\n", encoding="utf-8")
    heard = {name for rows in recorded.values() for row in rows for name in _messages(row)}
    known = {kind.__name__ for kinds in KINDS.values() for kind in get_args(kinds.union)}
    print(f"messages in none of them: {', '.join(sorted(known - heard)) or 'none'}")
    return 0


def _recorded(play: Callable[[Cluster], None]) -> list[Row]:
    with TemporaryDirectory(prefix="detcloud-journals-") as home:
        # What must hold after each commit is for the simulation to say.
        cluster = Cluster(Path(home) / "table.db", shadow=Shadow(lenient=True))
        try:
            play(cluster)
        finally:
            cluster.close()
    return [Row(put.key, put.revision, put.body) for put in cluster.shadow.rows.values()]


def _messages(row: Row) -> Iterator[str]:
    if not row.key.sort.startswith("Z#0"):
        return
    entry = read_row(row.body)
    for named in (*(x for mail in entry["in"] for x in mail["messages"]), *entry["command"]):
        yield named[0]


if __name__ == "__main__":
    sys.exit(main())
