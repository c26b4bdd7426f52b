"""A read-only view of an actor's parts, for queries and audits."""

from control_plane.actors.step import ObservedRow, StepContext
from control_plane.engine.engine import Engine
from control_plane.state.table import Key


def read_only_context(engine: Engine, address: str) -> StepContext:
    """A step context that only reads. Each part is read once, when it is first needed, so parts may
    be of different moments.
    """
    return StepContext(address, 0, _LatestReader(engine, address))


class _LatestReader:
    def __init__(self, engine: Engine, address: str) -> None:
        self._engine = engine
        self._address = address
        self._parts: dict[str, object | None] = {}

    def part(self, name: str) -> object | None:
        """Read a part of the actor, or None."""
        if name not in self._parts:
            self._parts[name] = self._engine.read_part(self._address, name)
        return self._parts[name]

    def row(self, partition: str, sort: str) -> ObservedRow:
        """Read a row outside the actor; revision 0 and no body where there is none."""
        row = self._engine.table.get(Key(partition, sort))
        return ObservedRow(0, b"") if row is None else ObservedRow(row.revision, row.body)
