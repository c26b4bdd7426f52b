"""The parts of an actor as somebody reads them who only looks."""

from control_plane.actors.step import RowSeen, Turn
from control_plane.dispatch.engine import Engine
from control_plane.state.table import Key


def looking_at(engine: Engine, address: str) -> Turn:
    """A turn for reading alone: each part is read once, when it is asked for, so that several may
    be of different moments.
    """
    return Turn(address, 0, _Parts(engine, address))


class _Parts:
    def __init__(self, engine: Engine, address: str) -> None:
        self._engine = engine
        self._address = address
        self._known: dict[str, object | None] = {}

    def part(self, name: str) -> object | None:
        """A part of the actor, or None."""
        if name not in self._known:
            self._known[name] = self._engine.part(self._address, name)
        return self._known[name]

    def row(self, partition: str, sort: str) -> RowSeen:
        """A row outside the actor."""
        row = self._engine.table.get(Key(partition, sort))
        return RowSeen(0, b"") if row is None else RowSeen(row.revision, row.body)
