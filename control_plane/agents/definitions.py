"""A cached reader of the definitions of experiments.

A definition is written once per run generation and never changes, so a process reads each
definition once.
"""

from collections.abc import Collection, Sequence
from threading import Lock

from control_plane.actors import addresses
from control_plane.actors.experiment.state import Definition, ExperimentState
from control_plane.actors.records import Status
from control_plane.bounded_cache import BoundedCache
from control_plane.engine.engine import Engine

KEPT_BYTES_MAX = 8_000_000
"""The size of the cache: the bytes of all configurations and their overheads."""
_DEFINITION_OVERHEAD_BYTES = 4_000
"""The estimated size of a cached definition without its configuration."""

Defined = tuple[ExperimentState, Definition]
"""An experiment's state and its definition."""

_RunKey = tuple[int, int]
"""An experiment's id and run generation, which identify a definition."""


class DefinitionReader:
    """A reader of experiments' definitions that caches recently used definitions.

    Threads may share a reader.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = Lock()
        self._cache: BoundedCache[_RunKey, Definition] = BoundedCache(KEPT_BYTES_MAX)

    def with_definitions(self, states: Sequence[object]) -> list[Defined | None]:
        """Return each state together with the experiment's definition, in the order of `states`.

        The entry is None if the state is not an experiment's, if the experiment is deleted, or if
        its definition no longer exists. Definitions outside the cache are read in one request.
        """
        keyed_states = [
            ((state.experiment_id, state.life), state)
            if isinstance(state, ExperimentState) and state.status is not Status.DELETED
            else None
            for state in states
        ]
        definitions = self._find({keyed[0] for keyed in keyed_states if keyed is not None})
        return [
            None
            if keyed is None or keyed[0] not in definitions
            else (keyed[1], definitions[keyed[0]])
            for keyed in keyed_states
        ]

    def _find(self, keys: Collection[_RunKey]) -> dict[_RunKey, Definition]:
        """Return the definitions of runs from the cache, or else from the state table.

        Definitions that are read are cached. Deleted definitions are omitted.
        """
        with self._lock:
            lookups = {key: self._cache.find(key) for key in keys}
        cached = {key: definition for key, definition in lookups.items() if definition is not None}
        return cached | self._read([key for key in lookups if key not in cached])

    def _read(self, keys: Sequence[_RunKey]) -> dict[_RunKey, Definition]:
        """Read definitions from the state table into the cache and return them.

        Deleted definitions are omitted.
        """
        places = [(addresses.experiment(number), "definition") for number, _ in keys]
        parts = zip(keys, self._engine.read_parts(places), strict=True)
        definitions = {key: part for key, part in parts if isinstance(part, Definition)}
        with self._lock:
            for key, definition in definitions.items():
                size = len(definition.config) + _DEFINITION_OVERHEAD_BYTES
                self._cache.keep(key, definition, size)
        return definitions
