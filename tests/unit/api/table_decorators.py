"""Tables that record or refuse the calls of a cluster."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from control_plane.state.table import Key, Page, Row, StateTable, Write
from simulator.faults.table_faults import TableDecorator
from tests.unit.api.cluster import Cluster


class RecordedTable(TableDecorator):
    """A table that records calls, read keys, the number of queried rows, and commits."""

    snapshot_queries = True

    def __init__(self, table: StateTable) -> None:
        super().__init__(table)
        self.calls: Counter[str] = Counter()
        self.rows_read = 0
        """The number of rows that queries returned."""
        self.keys_read: list[tuple[Key, ...]] = []
        """The keys of each call of `get` and `get_many`."""
        self.commits: list[Sequence[Write]] = []
        """The writes of each commit, also of a failed commit."""

    def get(self, key: Key) -> Row | None:
        self.calls["get"] += 1
        self.keys_read.append((key,))
        return super().get(key)

    def get_many(self, keys: Sequence[Key]) -> tuple[Row | None, ...]:
        self.calls["get_many"] += 1
        self.keys_read.append(tuple(keys))
        return self.table.get_many(keys)

    def query(
        self, partition: str, first: str, last: str, *, limit: int = 1000, descending: bool = False
    ) -> Page:
        self.calls["query"] += 1
        page = super().query(partition, first, last, limit=limit, descending=descending)
        self.rows_read += len(page.rows)
        return page

    def commit(self, writes: Sequence[Write]) -> None:
        self.calls["commit"] += 1
        self.commits.append(writes)
        super().commit(writes)


class RefusingTable(TableDecorator):
    """A table that refuses commits.

    Args:
        table: the table that stores the rows.
        errors: the error of each commit in order; None lets a commit pass, also after the last.
        picks: selects the commits that have an entry in `errors`. Other commits pass.
    """

    snapshot_queries = True

    def __init__(
        self,
        table: StateTable,
        errors: Iterable[Exception | None],
        picks: Callable[[Sequence[Write]], bool] = lambda writes: True,
    ) -> None:
        super().__init__(table)
        self._errors = iter(errors)
        self._picks = picks

    def commit(self, writes: Sequence[Write]) -> None:
        error = next(self._errors, None) if self._picks(writes) else None
        if error is not None:
            raise error
        super().commit(writes)


def writes_to(partition: str) -> Callable[[Sequence[Write]], bool]:
    """Return a predicate for commits with a write in the partition."""
    return lambda writes: any(write.key.partition == partition for write in writes)


@contextmanager
def recorded_table(cluster: Cluster) -> Iterator[RecordedTable]:
    """Replace the cluster's table by a recording table inside the block."""
    table = RecordedTable(cluster.services.table)
    cluster.services.engine.table = table
    yield table
    cluster.services.engine.table = table.table
