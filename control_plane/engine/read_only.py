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
    """A step context that only reads. Each part is read once, when it is first needed, so parts may
    be of different moments.
    """
    return StepContext(address, 0, _LatestReader(engine, parts or ActorParts(engine, address)))


class ActorParts:
    """The parts of an actor, each read once. All those of a family (`groups` and what is below it)
    are read together. A part that is as it was in `former` is not decoded again.
    """

    def __init__(
        self,
        engine: Engine,
        address: str,
        families: Collection[str] = (),
        former: "ActorParts | None" = None,
    ) -> None:
        self.address = address
        self._engine = engine
        self._families = frozenset(families)
        self._former = {} if former is None else former._decoded
        self._rows: dict[str, Row | None] = {}
        self._decoded: dict[str, tuple[int, object]] = {}
        self._families_read: set[str] = set()

    def part(self, name: str) -> object | None:
        """Read a part, or None."""
        row = self._row(name)
        if row is None:
            return None
        known = self._decoded.get(name) or self._former.get(name)
        if known is None or known[0] != row.revision:
            known = row.revision, actor_type_at(self.address).decode_part(name, row.body)
        self._decoded[name] = known
        return known[1]

    def _row(self, name: str) -> Row | None:
        family = name.partition("/")[0]
        if family in self._families and family not in self._families_read:
            self._families_read.add(family)
            rows = self._engine.read_part_rows(self.address, family)
            self._rows |= {row.key.sort.removeprefix(PARTS): row for row in rows}
        if name not in self._rows and family not in self._families:
            self._rows[name] = self._engine.table.get(Key(self.address, PARTS + name))
        return self._rows.get(name)


class _LatestReader:
    def __init__(self, engine: Engine, parts: ActorParts) -> None:
        self._engine = engine
        self._parts = parts

    def part(self, name: str) -> object | None:
        """Read a part of the actor, or None."""
        return self._parts.part(name)

    def row(self, partition: str, sort: str) -> ObservedRow:
        """Read a row outside the actor; revision 0 and no body where there is none."""
        row = self._engine.table.get(Key(partition, sort))
        return ObservedRow(0, b"") if row is None else ObservedRow(row.revision, row.body)
