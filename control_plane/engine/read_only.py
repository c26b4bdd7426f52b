"""A read-only view of an actor's parts, for queries and audits."""

from collections.abc import Collection

from control_plane.actors.step import ObservedRow, StepContext
from control_plane.engine.actor_types import actor_type_at
from control_plane.engine.engine import Engine
from control_plane.engine.head import PARTS
from control_plane.state.table import Key, Row


def read_only_context(
    engine: Engine, address: str, parts: "ActorParts | None" = None
) -> StepContext:
    """Return a step context for reading an actor's parts and other rows outside a fold.

    Nothing is read yet. Each part is read on its first use, so the parts may be from different
    moments. Effects that are added to the context are never committed. The context's time is 0.

    Args:
        parts: the reader of the actor's parts, which may have read some already. None creates a new
            reader.
    """
    return StepContext(address, 0, _LatestReader(engine, parts or ActorParts(engine, address)))


class ActorParts:
    """The parts of an actor, which are named rows of the larger state. Each part is read from the
    table once, on its first use.

    Args:
        families: families of parts to read together, such as `groups` for `groups` and all
            `groups/...`.
        previous: earlier parts of the actor. A part whose revision is unchanged since then is not
            decoded again.
    """

    def __init__(
        self,
        engine: Engine,
        address: str,
        families: Collection[str] = (),
        previous: "ActorParts | None" = None,
    ) -> None:
        self.address = address
        self._engine = engine
        self._families = frozenset(families)
        self._previous = {} if previous is None else previous._decoded
        self._rows: dict[str, Row | None] = {}
        self._decoded: dict[str, tuple[int, object]] = {}
        self._families_read: set[str] = set()

    def part(self, name: str) -> object | None:
        """Return the decoded part. Return None if the part does not exist.

        The first use reads the part, or its whole family. Raises TableError if the read fails, and
        ValueError for a part that cannot be decoded and has no replacement
        (`ActorType.damaged_parts`).
        """
        row = self._row(name)
        if row is None:
            return None
        decoded = self._decoded.get(name) or self._previous.get(name)
        if decoded is None or decoded[0] != row.revision:
            decoded = row.revision, actor_type_at(self.address).decode_part(name, row.body)
        self._decoded[name] = decoded
        return decoded[1]

    def _row(self, name: str) -> Row | None:
        """Return the row of a part, reading the row or the whole family on first use.

        Return None if the row does not exist. Raises TableError.
        """
        family = name.partition("/")[0]
        if family in self._families and family not in self._families_read:
            self._families_read.add(family)
            rows = self._engine.read_part_rows(self.address, family)
            self._rows |= {row.key.sort.removeprefix(PARTS): row for row in rows}
        if name not in self._rows and family not in self._families:
            self._rows[name] = self._engine.table.get(Key(self.address, PARTS + name))
        return self._rows.get(name)


class PrefetchedParts(ActorParts):
    """The parts of an actor that a caller has read together with other rows.

    The caller catches `PartMissing`, reads the missing rows of several actors in one call, adds the
    rows, and repeats the query.
    """

    def add(self, name: str, row: Row | None) -> None:
        """Add the row of a part. None means that the part does not exist."""
        self._rows[name] = row

    def _row(self, name: str) -> Row | None:
        """Return the row of a part. Return None if the row does not exist.

        Raises:
            PartMissing: the row was not added yet.
        """
        if name not in self._rows:
            raise PartMissing(name)
        return self._rows[name]


class PartMissing(Exception):
    """A part that must be read before a query can continue."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class _LatestReader:
    """A reader for step contexts that returns the latest committed values."""

    def __init__(self, engine: Engine, parts: ActorParts) -> None:
        self._engine = engine
        self._parts = parts

    def part(self, name: str) -> object | None:
        """Return the decoded part. Return None if the part does not exist.

        Raises TableError if the read fails, and ValueError for a part that cannot be decoded.
        """
        return self._parts.part(name)

    def row(self, partition: str, sort: str) -> ObservedRow:
        """Read a row outside the actor from the table, at each call. Raises TableError.

        A missing row has revision 0 and an empty body.
        """
        row = self._engine.table.get(Key(partition, sort))
        return ObservedRow(0, b"") if row is None else ObservedRow(row.revision, row.body)
