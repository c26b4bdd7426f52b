"""The definitions of experiments, each of which is written once in a run generation and so is read
once.
"""

from collections.abc import Collection, Sequence
from threading import Lock

from control_plane.actors import addresses
from control_plane.actors.experiment.state import Definition, ExperimentState
from control_plane.actors.records import Status
from control_plane.bounded_cache import BoundedCache
from control_plane.engine.engine import Engine

# Bytes of the definitions that are kept: their configurations, and what is around each of them.
KEPT_BYTES_MAX = 8_000_000
_BYTES_AROUND = 4_000

Defined = tuple[ExperimentState, Definition]
"""An experiment's state and its definition."""

_Name = tuple[int, int]
"""An experiment's id and run generation."""


class DefinitionReader:
    """Reads the definitions of experiments, and keeps those used last. Safe to share between
    threads.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = Lock()
        self._kept: BoundedCache[_Name, Definition] = BoundedCache(KEPT_BYTES_MAX)

    def with_definitions(self, states: Sequence[object]) -> list[Defined | None]:
        """The states, in their order, each with its definition; None for what is the state of no
        experiment, or of a deleted one. Definitions that are not kept are read together.
        """
        named = [
            ((state.experiment_id, state.life), state)
            if isinstance(state, ExperimentState) and state.status is not Status.DELETED
            else None
            for state in states
        ]
        found = self._find({one[0] for one in named if one is not None})
        return [
            None if one is None or one[0] not in found else (one[1], found[one[0]]) for one in named
        ]

    def _find(self, names: Collection[_Name]) -> dict[_Name, Definition]:
        """Find definitions; those that are gone meanwhile are left out."""
        with self._lock:
            kept = {name: self._kept.find(name) for name in names}
        found = {name: definition for name, definition in kept.items() if definition is not None}
        return found | self._read([name for name in kept if name not in found])

    def _read(self, names: Sequence[_Name]) -> dict[_Name, Definition]:
        places = [(addresses.experiment(number), "definition") for number, _ in names]
        parts = zip(names, self._engine.read_parts(places), strict=True)
        found = {name: part for name, part in parts if isinstance(part, Definition)}
        with self._lock:
            for name, definition in found.items():
                self._kept.keep(name, definition, len(definition.config) + _BYTES_AROUND)
        return found
