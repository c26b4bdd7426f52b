"""The types of actors, and how their states, parts and messages are stored.

Stored JSON carries the name of the message's type, or the one that messages/stored_names.py has for
it. A message type that is no longer used stays here under its name until no row holds it. A field
of a message that has its default is not stored, so a default never changes; a state's new fields
come last, with a default. tests/journals checks both.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cached_property
from types import UnionType
from typing import Any, get_args, get_type_hints

from pydantic import TypeAdapter
from pydantic_core import from_json

from control_plane.actors.addresses import actor_type_name
from control_plane.actors.messages.stored_names import stored_name
from control_plane.actors.step import StepContext

EncodedMessage = tuple[str, bytes]

# Pools and agents outlive the experiments that they serve: what they did for one is kept a month.
JOURNAL_KEPT_MS = 30 * 24 * 3_600_000


@dataclass(frozen=True)
class ActorType:
    """One type of actor: its rules, and the codec of what is stored of it.

    `constructor` is the stored name of the message that creates the actor: no row was mailed to it
    before. `step` applies a message; `fallback` applies a dead letter, one that `step` failed on,
    and never fails itself; `finish_fold` ends a fold. `part_types` maps a part's name, up to and
    with its first "/", to its type; bytes are stored raw. `secret_parts` may hold secrets and are
    never shown. Entries of the journal are deleted after `journal_kept_ms`; None: with the actor.
    `takes_deliveries`: messages are folded in the commit that sends them, if possible.
    """

    state_type: type
    message_union: UnionType
    constructor: str
    step: Callable[[Any, Any, StepContext], Any]
    fallback: Callable[[Any, object, StepContext], Any]
    finish_fold: Callable[[Any, StepContext], Any] | None = None
    part_types: Mapping[str, Any] = field(default_factory=dict)
    secret_parts: frozenset[str] = frozenset()
    journal_kept_ms: int | None = None
    takes_deliveries: bool = False

    @cached_property
    def field_names(self) -> tuple[str, ...]:
        """The state's fields, in order. A later version appends to them."""
        return tuple(self._field_adapters)

    @cached_property
    def field_defaults(self) -> Mapping[str, object]:
        """The default values of the state's fields, by name, for those that have one."""
        all_fields = fields(self.state_type)
        values = {f.name: f.default for f in all_fields if f.default is not MISSING}
        factories = {f.name: f.default_factory for f in all_fields}
        return values | {name: make() for name, make in factories.items() if callable(make)}

    @cached_property
    def _field_adapters(self) -> dict[str, TypeAdapter[Any]]:
        return {name: TypeAdapter(kind) for name, kind in get_type_hints(self.state_type).items()}

    @cached_property
    def _state_adapter(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.state_type)

    @cached_property
    def _message_adapters(self) -> dict[str, TypeAdapter[Any]]:
        return {
            stored_name(message): TypeAdapter(message) for message in get_args(self.message_union)
        }

    @cached_property
    def _part_adapters(self) -> dict[str, TypeAdapter[Any]]:
        return {
            name: TypeAdapter(kind) for name, kind in self.part_types.items() if kind is not bytes
        }

    def encode_state(self, state: object) -> bytes:
        """The state as JSON."""
        return self._state_adapter.serializer.to_json(state)

    def decode_state(self, body: bytes) -> Any:
        """Decode a state from JSON; ValueError for a body that is no such state."""
        return self._state_adapter.validate_json(body)

    def encode_field(self, name: str, value: object) -> bytes:
        """A field of the state as JSON without defaults, so that a field added inside its value
        changes nothing while it has its default.
        """
        return self._field_adapters[name].serializer.to_json(value, exclude_defaults=True)

    def encode_message(self, message: object) -> EncodedMessage:
        """A message as its stored name and its fields as JSON without defaults."""
        name = stored_name(type(message))
        serializer = self._message_adapters[name].serializer
        return name, serializer.to_json(message, exclude_defaults=True)

    def encode_message_with_defaults(self, name: str, fields: object) -> bytes:
        """A stored message as JSON with every default."""
        return self._message_adapters[name].dump_json(self.decode_message(name, fields))

    def decode_message(self, name: str, fields: object) -> Any:
        """Decode a message from its stored name and fields; KeyError for an unknown name,
        ValueError for fields that the message does not have.
        """
        return self._message_adapters[name].validate_python(fields)

    def encode_part(self, name: str, value: object) -> bytes:
        """A part's value as it is stored."""
        adapter = self._part_adapters.get(_part_family(name))
        if adapter is None:
            assert isinstance(value, bytes), name
            return value
        return adapter.dump_json(value)

    def decode_part(self, name: str, body: bytes) -> object:
        """Decode a stored part's value; ValueError for a body that is no such part."""
        adapter = self._part_adapters.get(_part_family(name))
        return body if adapter is None else adapter.validate_json(body)

    def encode_part_without_defaults(self, name: str, value: object) -> bytes:
        """A part's value without defaults, as replays compare it."""
        adapter = self._part_adapters.get(_part_family(name))
        if adapter is None:
            return self.encode_part(name, value)
        return adapter.dump_json(value, exclude_defaults=True)


class _ActorTypes(Mapping[str, ActorType]):
    """The actor types by name, each created when it is first used."""

    def __init__(self, *makers: Callable[[], ActorType]) -> None:
        self._makers = {maker.__name__.removeprefix("_make_"): maker for maker in makers}
        self._made = dict[str, ActorType]()

    def __getitem__(self, name: str) -> ActorType:
        if (made := self._made.get(name)) is not None:
            return made
        # Of threads that ask at once, all go on with what one of them made.
        return self._made.setdefault(name, self._makers[name]())

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


# The actors and their messages take a third of a function's start to import (bench/cold_starts.py
# and bench/gcp_cold_starts.py), and most calls meet one or two types.


def _make_experiment() -> ActorType:
    from control_plane.actors.experiment import actor
    from control_plane.actors.experiment.bill import Meters
    from control_plane.actors.experiment.state import Definition, ExperimentState, Settings
    from control_plane.actors.experiment.trial_summaries import Summaries
    from control_plane.actors.messages.experiment import ExperimentMessage

    return ActorType(
        ExperimentState,
        ExperimentMessage,
        "ExperimentSubmitted",
        actor.step,
        actor.fallback,
        part_types={
            "definition": Definition,
            "settings": Settings,
            "generator": bytes,
            "search/": bytes,
            "trials/": Summaries,
            "meters/": Meters,
        },
        secret_parts=frozenset({"definition"}),
    )


def _make_trial() -> ActorType:
    from control_plane.actors.messages.trial import TrialMessage
    from control_plane.actors.trial import actor
    from control_plane.actors.trial.checkpoints import CheckpointRecord
    from control_plane.actors.trial.state import TrialState

    return ActorType(
        TrialState,
        TrialMessage,
        "TrialCreated",
        actor.step,
        actor.fallback,
        part_types={"checkpoint/": CheckpointRecord},
        takes_deliveries=True,
    )


def _make_pool() -> ActorType:
    from control_plane.actors.messages.pool import PoolMessage, PoolSettings
    from control_plane.actors.ordered_map import Directory, Leaf
    from control_plane.actors.pool import actor

    return ActorType(
        actor.PoolState,
        PoolMessage,
        "PoolConfigured",
        actor.step,
        actor.fallback,
        actor.finish_fold,
        part_types={
            "settings": PoolSettings,
            "requests": Directory,
            "requests/": Leaf,
            "groups": Directory,
            "groups/": Leaf,
            "idle": Directory,
            "idle/": Leaf,
            "agents": Directory,
            "agents/": Leaf,
        },
        journal_kept_ms=JOURNAL_KEPT_MS,
    )


def _make_agent() -> ActorType:
    from control_plane.actors.agent import actor
    from control_plane.actors.messages.agent import AgentMessage

    return ActorType(
        actor.AgentState,
        AgentMessage,
        "AgentEnrolled",
        actor.step,
        actor.fallback,
        journal_kept_ms=JOURNAL_KEPT_MS,
    )


ACTOR_TYPES: Mapping[str, ActorType] = _ActorTypes(
    _make_experiment, _make_trial, _make_pool, _make_agent
)


def actor_type_at(address: str) -> ActorType:
    """The type of the actor at an address."""
    return ACTOR_TYPES[actor_type_name(address)]


def encode_message_for(address: str, message: object) -> EncodedMessage:
    """A message as it is stored in the mailbox of `address`."""
    return actor_type_at(address).encode_message(message)


def parse_json(body: bytes) -> Any:
    """JSON as Python values; ValueError for anything else."""
    return from_json(body)


def _part_family(name: str) -> str:
    """A part's name up to and with its first "/": `queue/` for `queue/7`."""
    head, slash, _ = name.partition("/")
    return head + slash
