"""Services that fill the folder of a stopped cluster.

The rows are the same as those of a running cluster, but are written much faster because a crash may
lose them.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cached_property
from itertools import count
from pathlib import Path

from control_plane.engine.engine import COMMAND_BUDGET_MS
from control_plane.engine.engine_timing import EngineTiming
from control_plane.local.state_places import FILE
from control_plane.services import Services
from control_plane.state.sqlite import SqliteTable
from control_plane.state.table import Write, check_limits
from lambdas.builder import Cluster
from local_cluster.adapters import LocalAdapters
from local_cluster.home import HomeFolder

COMMITS_AT_ONCE = 1_000


class FillingTable(SqliteTable):
    """A table that puts many commits into a single transaction of the file.

    A small transaction writes whole pages, and most pages are written again by the next. Only a
    single thread may use the file meanwhile.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, synchronous="NORMAL")
        self._commits = 0

    def close(self) -> None:
        """Write the open transaction to the file and close the file."""
        if self._db.in_transaction:
            self._db.execute("commit")
        super().close()

    def commit(self, writes: Sequence[Write]) -> None:
        """Apply all writes or none. The file contains the writes at the latest when the table is
        closed.
        """
        check_limits(writes)
        if not self._db.in_transaction:
            self._db.execute("begin immediate")
        self._db.execute("savepoint filling")
        try:
            for write in writes:
                self._apply(write)
        except BaseException:
            self._db.execute("rollback to filling")
            raise
        finally:
            self._db.execute("release filling")
        self._commits += 1
        if self._commits % COMMITS_AT_ONCE == 0:
            self._db.execute("commit")

    def _roll_back(self) -> None:
        """Keep the open transaction, which contains earlier commits."""


class _FillingAdapters(LocalAdapters):
    def __init__(self, home: HomeFolder, *, follows_commands: bool) -> None:
        super().__init__(home, "")
        self._follows_commands = follows_commands

    @cached_property
    def state_table(self) -> SqliteTable:
        return FillingTable(self._home.folder / FILE)

    @property
    def timing(self) -> EngineTiming:
        if self._follows_commands:
            return super().timing
        # Each reading of the clock exceeds the time budget for the consequences of a command.
        ticks = count(step=COMMAND_BUDGET_MS)
        return EngineTiming(monotonic_seconds=lambda: float(next(ticks)))


@contextmanager
def services_to_fill(home: HomeFolder, *, follows_commands: bool = True) -> Iterator[Services]:
    """Yield the services of a stopped cluster for filling.

    `follows_commands`: whether receivers process the mail of commands. Otherwise the mail waits
    until a caller advances the receivers.
    """
    adapters = _FillingAdapters(home, follows_commands=follows_commands)
    with closing(adapters.state_table):
        yield Cluster(adapters).services
