"""The kinds of actors and how their state, parts and messages are stored.

Stored JSON carries the message's type name; a type that goes is kept here under its name until no
row holds it. A field of a message that has its default is not stored, so a default never changes;
a state's new fields come last, with a default. tests/journals holds the code to both.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cached_property
from types import UnionType
from typing import Any, get_args, get_type_hints

from pydantic import TypeAdapter
from pydantic_core import from_json

from control_plane.actors import agent, experiment, ordered, pool, trial
from control_plane.actors.addresses import kind_of
from control_plane.actors.agent_messages import AgentMessage
from control_plane.actors.experiment_bill import Meters
from control_plane.actors.experiment_messages import ExperimentMessage
from control_plane.actors.experiment_state import Definition, ExperimentState, Settings
from control_plane.actors.experiment_summaries import Summaries
from control_plane.actors.pool_messages import PoolMessage, PoolSettings
from control_plane.actors.step import Turn
from control_plane.actors.trial_checkpoints import CheckpointRecord
from control_plane.actors.trial_messages import TrialMessage
from control_plane.actors.trial_state import TrialState

Encoded = tuple[str, bytes]


@dataclass(frozen=True)
class Kind:
    """One kind of actor. `parts` maps a part's name, up to and with its first "/", to its type;
    bytes are stored raw.

    `constructor` names the message that creates the actor: no row was mailed to it before.
    `step` folds a message, `settle` ends a fold, `fallback` is total: it takes a message that
    `step` cannot. `secret`: parts that may hold secrets, which are never shown.
    """

    state: type
    union: UnionType
    constructor: str
    step: Callable[[Any, Any, Turn], Any]
    fallback: Callable[[Any, object, Turn], Any]
    settle: Callable[[Any, Turn], Any] | None = None
    parts: Mapping[str, Any] = field(default_factory=dict)
    secret: frozenset[str] = frozenset()

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The state's fields, in order. A later version appends to them."""
        return tuple(self._fields)

    @cached_property
    def defaults(self) -> Mapping[str, object]:
        """Values of the state's fields that need not be given."""
        given = {f.name: f.default for f in fields(self.state) if f.default is not MISSING}
        made = (f for f in fields(self.state) if f.default_factory is not MISSING)
        return given | {f.name: f.default_factory() for f in made if callable(f.default_factory)}

    @cached_property
    def _fields(self) -> dict[str, TypeAdapter[Any]]:
        return {name: TypeAdapter(kind) for name, kind in get_type_hints(self.state).items()}

    @cached_property
    def _state(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.state)

    @cached_property
    def _messages(self) -> dict[str, TypeAdapter[Any]]:
        return {message.__name__: TypeAdapter(message) for message in get_args(self.union)}

    @cached_property
    def _parts(self) -> dict[str, TypeAdapter[Any]]:
        return {name: TypeAdapter(kind) for name, kind in self.parts.items() if kind is not bytes}

    def encode_state(self, state: object) -> bytes:
        """The state as JSON."""
        return self._state.dump_json(state)

    def decode_state(self, body: bytes) -> Any:
        """The way back; ValueError for a body that is no such state."""
        return self._state.validate_json(body)

    def encode_field(self, name: str, value: object) -> bytes:
        """A field of the state as JSON without defaults, so that one added inside changes nothing
        while it has its default.
        """
        return self._fields[name].dump_json(value, exclude_defaults=True)

    def encode_message(self, message: object) -> Encoded:
        """A message as its type's name and JSON without defaults, as `encode_field`."""
        name = type(message).__name__
        return name, self._messages[name].dump_json(message, exclude_defaults=True)

    def encode_whole(self, name: str, fields: object) -> bytes:
        """A stored message as JSON with every default."""
        return self._messages[name].dump_json(self.decode_message(name, fields))

    def decode_message(self, name: str, fields: object) -> Any:
        """The way back; KeyError for a name, ValueError for fields that no message has."""
        return self._messages[name].validate_python(fields)

    def encode_part(self, name: str, value: object) -> bytes:
        """A part's value as stored."""
        adapter = self._parts.get(_family(name))
        if adapter is None:
            assert isinstance(value, bytes), name
            return value
        return adapter.dump_json(value)

    def decode_part(self, name: str, body: bytes) -> object:
        """The way back."""
        adapter = self._parts.get(_family(name))
        return body if adapter is None else adapter.validate_json(body)

    def essence(self, name: str, value: object) -> bytes:
        """A part's value without defaults, as `encode_field`."""
        adapter = self._parts.get(_family(name))
        if adapter is None:
            return self.encode_part(name, value)
        return adapter.dump_json(value, exclude_defaults=True)


KINDS: Mapping[str, Kind] = {
    "experiment": Kind(
        ExperimentState,
        ExperimentMessage,
        "ExperimentSubmitted",
        experiment.step,
        experiment.fallback,
        parts={
            "definition": Definition,
            "settings": Settings,
            "generator": bytes,
            "search/": bytes,
            "trials/": Summaries,
            "meters/": Meters,
        },
        secret=frozenset({"definition"}),
    ),
    "trial": Kind(
        TrialState,
        TrialMessage,
        "TrialCreated",
        trial.step,
        trial.fallback,
        parts={"checkpoint/": CheckpointRecord},
    ),
    "pool": Kind(
        pool.PoolState,
        PoolMessage,
        "PoolConfigured",
        pool.step,
        pool.fallback,
        pool.settle,
        parts={
            "settings": PoolSettings,
            "requests": ordered.Directory,
            "requests/": ordered.Leaf,
            "groups": ordered.Directory,
            "groups/": ordered.Leaf,
            "agents": ordered.Directory,
            "agents/": ordered.Leaf,
        },
    ),
    "agent": Kind(agent.AgentState, AgentMessage, "AgentEnrolled", agent.step, agent.fallback),
}


def kind_at(address: str) -> Kind:
    """The kind of actor that lives at an address."""
    return KINDS[kind_of(address)]


def encode_for(address: str, message: object) -> Encoded:
    """A message as stored in the mailbox of `address`."""
    return kind_at(address).encode_message(message)


def parse_json(body: bytes) -> Any:
    """JSON as Python values; ValueError for anything else."""
    return from_json(body)


def _family(name: str) -> str:
    """What `queue/7` and `queue/8` have in common: `queue/`."""
    head, slash, _ = name.partition("/")
    return head + slash
