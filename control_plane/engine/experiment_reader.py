"""A reader of trials and experiments with a cache of definitions.

A definition is written once per run generation and never changes, so a process reads each
definition once.
"""

from collections.abc import Collection, Iterable, Sequence
from threading import Lock

from control_plane.actors import addresses
from control_plane.actors.experiment.state import Definition, ExperimentState
from control_plane.actors.records import Status
from control_plane.actors.trial.state import TrialState
from control_plane.bounded_cache import BoundedCache
from control_plane.engine.engine import Engine
from control_plane.state.table import Key, Row

KEPT_BYTES_MAX = 8_000_000
"""The size of the cache: the bytes of all configurations and their overheads."""
_DEFINITION_OVERHEAD_BYTES = 4_000
"""The estimated size of a cached definition without its configuration."""

Defined = tuple[ExperimentState, Definition]
"""An experiment's state and its definition."""

_RunKey = tuple[int, int]
"""An experiment's id and run generation, which identify a definition."""


class ExperimentReader:
    """A reader of trials and experiments that caches recently used definitions.

    Threads may share a reader.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = Lock()
        self._cache: BoundedCache[_RunKey, Definition] = BoundedCache(KEPT_BYTES_MAX)

    def read_trial(self, trial_id: int) -> TrialState | None:
        """Read a trial's state. Return None for an unknown or erased trial.

        Raises TableError if the read fails, and ValueError for a state that cannot be decoded.
        """
        state = self._engine.read_state(addresses.trial(trial_id))
        assert state is None or isinstance(state, TrialState)
        return state

    def read_trials(self, trial_ids: Iterable[int]) -> list[TrialState | None]:
        """Read the states of trials, in the order of the ids. The entry of an unknown trial is
        None.

        Raises TableError if the read fails, and ValueError for a state that cannot be decoded.
        """
        return self._engine.read_states([addresses.trial(trial_id) for trial_id in trial_ids])

    def read_experiment(self, experiment_id: int) -> Defined | None:
        """Read an experiment's state and definition.

        Return None for an unknown or deleted experiment, and for an experiment without a stored
        definition. Raises TableError if a read fails, and ValueError for a state or definition that
        cannot be decoded.
        """
        return self.with_definition(self._engine.read_state(addresses.experiment(experiment_id)))

    def read_experiments(
        self, experiment_ids: Sequence[int], keys: Sequence[Key] = ()
    ) -> tuple[list[Defined | None], list[Row | None]]:
        """Read states and definitions of experiments together with the rows of `keys`.

        Both lists keep the order of the arguments. The entry is None for a missing row, and for an
        unknown or deleted experiment or an experiment without a stored definition. Raises
        TableError if a read fails, and ValueError for a state or definition that cannot be decoded.
        """
        names = [addresses.experiment(number) for number in experiment_ids]
        states, rows = self._engine.read_states_and_rows(names, keys)
        return self.with_definitions(states), rows

    def with_definition(self, state: object) -> Defined | None:
        """Return an experiment's state together with the experiment's definition.

        Read the definition from the cache or the state table. Return None if the state is None, is
        not an experiment's, belongs to a deleted experiment, or has no stored definition. Raises
        TableError if the read fails, and ValueError for a definition that cannot be decoded.
        """
        return self.with_definitions([state])[0]

    def with_definitions(self, states: Sequence[object]) -> list[Defined | None]:
        """Return each state together with the experiment's definition, in the order of `states`.

        The entry is None if the state is not an experiment's, if the experiment is deleted, or if
        its definition no longer exists. Definitions outside the cache are read together, in
        batches. Raises TableError if a read fails, and ValueError for a definition that cannot be
        decoded.
        """
        keyed_states = [
            ((state.experiment_id, state.run_generation), state)
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
        """Return the definitions of runs from the cache, or else from the state table, by run.

        Definitions that are read are cached. Deleted definitions are omitted. Raises TableError if
        a read fails, and ValueError for a definition that cannot be decoded.
        """
        with self._lock:
            lookups = {key: self._cache.find(key) for key in keys}
        cached = {key: definition for key, definition in lookups.items() if definition is not None}
        return cached | self._read([key for key in lookups if key not in cached])

    def _read(self, keys: Sequence[_RunKey]) -> dict[_RunKey, Definition]:
        """Read definitions from the state table, cache the definitions, and return a dict by run.

        Deleted definitions are omitted. Without keys, nothing is read. Raises TableError if a read
        fails, and ValueError for a definition that cannot be decoded.
        """
        places = [(addresses.experiment(number), "definition") for number, _ in keys]
        parts = zip(keys, self._engine.read_parts(places), strict=True)
        definitions = {key: part for key, part in parts if isinstance(part, Definition)}
        with self._lock:
            for key, definition in definitions.items():
                size = len(definition.config) + _DEFINITION_OVERHEAD_BYTES
                self._cache.keep(key, definition, size)
        return definitions
