"""The actor types, and the codecs of states, parts and messages.

Stored JSON contains the name of the message's type, or the stored name from
messages/stored_names.py. Fields that were renamed in the code have a stored name too
(rows/stored_fields.py). A message type that is no longer sent stays in its union until no row
contains it. Encoded messages leave out fields that have their default, so a default must never
change. New fields of a state are appended and have a default. tests/journals checks these rules.
"""

import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cached_property
from types import UnionType
from typing import Any, get_args, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from control_plane.actors.addresses import actor_type_name
from control_plane.actors.messages.stored_names import stored_name
from control_plane.actors.step import StepContext
from control_plane.appended_values import validate_without_appended
from control_plane.json_gate import parse_stored
from control_plane.rows.stored_fields import stored_field_names
from control_plane.rows.unknown_fields import select_unknown

EncodedMessage = tuple[str, bytes]
"""The stored name of a message, and its fields as JSON."""

# The journals of pools and agents are limited to a month, because pools and agents outlive
# experiments.
JOURNAL_KEPT_MS = 30 * 24 * 3_600_000


@dataclass(frozen=True)
class ActorType:
    """A type of actor: the step functions, and the codecs of stored values.

    A part is a named row of an actor's larger state, which is read only when it is needed.
    """

    state_type: type
    """The dataclass of the state."""
    message_union: UnionType
    """The union of all message types that the actor accepts."""
    constructor: str
    """The stored name of the message that creates the actor. It is the first message to the actor.
    """
    step: Callable[[Any, Any, StepContext], Any]
    """Applies one message: `step(state, message, context)` returns the next state. The state is
    None for a missing actor, before and after. Raises CommandRefused for a refused command.
    """
    fallback: Callable[[Any, object, StepContext], Any]
    """Applies a dead letter: `fallback(state, message, context)` returns the next state. A dead
    letter is a message that `step` failed on, or an UndecodableMessage.
    """
    finish_fold: Callable[[Any, StepContext], Any] | None = None
    """Called once after the last message of a fold; returns the final state. None for a type that
    needs no such call.
    """
    part_types: Mapping[str, Any] = field(default_factory=dict)
    """The type of each part, by part family: the part's name up to and including its first "/".
    Parts of type `bytes` are stored unencoded.
    """
    secret_parts: frozenset[str] = frozenset()
    """The parts that may contain secrets. They are never displayed."""
    journal_kept_ms: int | None = None
    """The age in ms at which journal entries expire. None keeps them as long as the actor."""
    takes_deliveries: bool = False
    """Whether messages are folded in the commit that sends them, where possible (delivery.py)."""
    damaged_parts: Mapping[str, Callable[[str, str], object]] = field(default_factory=dict)
    """By part family, a function of a part's name and an error text. It returns the value to use
    for a stored part that cannot be decoded. Without such a value, the actor could be neither
    listed nor deleted.
    """

    @cached_property
    def stored_names(self) -> Mapping[str, str]:
        """The stored name of each field of the state, by the name in the code.

        The fields are in the order of their definition. A later version of the state only appends
        fields, so the first fields of two versions are equal.
        """
        return stored_field_names(self.state_type)

    @cached_property
    def names_in_code(self) -> Mapping[str, str]:
        """The name in the code of each field of the state, by the stored name and in order."""
        return {stored: name for name, stored in self.stored_names.items()}

    @cached_property
    def field_defaults(self) -> Mapping[str, object]:
        """The default values of the state's fields, by the name in the code.

        A field without a default is left out.
        """
        all_fields = fields(self.state_type)
        values = {f.name: f.default for f in all_fields if f.default is not MISSING}
        factories = {f.name: f.default_factory for f in all_fields}
        return values | {name: make() for name, make in factories.items() if callable(make)}

    @cached_property
    def _field_adapters(self) -> dict[str, TypeAdapter[Any]]:
        """The pydantic adapters of the state's fields, by name."""
        return {name: TypeAdapter(kind) for name, kind in get_type_hints(self.state_type).items()}

    @cached_property
    def _state_adapter(self) -> TypeAdapter[Any]:
        """The pydantic adapter of the state."""
        return TypeAdapter(self.state_type)

    @cached_property
    def _message_adapters(self) -> dict[str, TypeAdapter[Any]]:
        """The pydantic adapters of the messages, by stored name."""
        return {
            stored_name(message): TypeAdapter(message) for message in get_args(self.message_union)
        }

    @property
    def message_names(self) -> Collection[str]:
        """The stored names of the messages that the actor accepts."""
        return self._message_adapters.keys()

    @cached_property
    def _part_adapters(self) -> dict[str, TypeAdapter[Any]]:
        """The pydantic adapters of the part families, without families of type `bytes`."""
        return {
            name: TypeAdapter(kind) for name, kind in self.part_types.items() if kind is not bytes
        }

    def encode_state(self, state: object) -> bytes:
        """Encode a state as JSON, without fields of the state that have default values.

        Values of fields keep their own defaults: some values are told apart by a field with a
        default, such as the kind of a search method.
        """
        defaults = self.field_defaults.items()
        left_out = {name for name, default in defaults if getattr(state, name) == default}
        return self._state_adapter.serializer.to_json(state, exclude=left_out, by_alias=True)

    def decode_state(self, body: bytes) -> Any:
        """Decode a state from JSON. Unknown fields are ignored; missing fields get their defaults.

        Raises ValueError if the JSON is not a valid state.
        """
        return _decode_json(self._state_adapter, body)

    def encode_field(self, name: str, value: object) -> bytes:
        """Encode the value of a field of the state as JSON, without defaults.

        The result does not change when a later version adds a field with a default inside the
        value.

        Args:
            name: the field's name in the code.
            value: the value of the field.

        Raises KeyError for an unknown field.
        """
        serializer = self._field_adapters[name].serializer
        return serializer.to_json(value, exclude_defaults=True, by_alias=True)

    def encode_message(self, message: object) -> EncodedMessage:
        """Return the message's stored name, and the fields as JSON without defaults.

        Raises KeyError for a message that the actor does not accept.
        """
        name = stored_name(type(message))
        serializer = self._message_adapters[name].serializer
        return name, serializer.to_json(message, exclude_defaults=True, by_alias=True)

    def encode_message_with_defaults(self, name: str, fields: object) -> bytes:
        """Decode a stored message, and encode the message as JSON that contains every field.

        Raises KeyError for an unknown name, and ValueError for fields that do not fit the message
        type.

        Args:
            name: the stored name of the message.
            fields: the fields as JSON values.
        """
        message = self.decode_message(name, fields)
        return self._message_adapters[name].dump_json(message, by_alias=True)

    def decode_message(self, name: str, fields: object) -> Any:
        """Decode a message from a stored name and fields.

        Unknown fields are ignored. So are values that a newer version appended to tuples.

        Raises KeyError for an unknown name, and ValueError for a missing field or a value of the
        wrong type.
        """
        return validate_without_appended(self._message_adapters[name], fields)

    def encode_part(self, name: str, value: object) -> bytes:
        """Encode a part's value as JSON with defaults. Return a value of type `bytes` unchanged.

        Raises AssertionError for a value other than `bytes` in a family of type `bytes` or an
        unknown family.

        Args:
            name: the name of the part, for example `trials/0`.
        """
        adapter = self._part_adapters.get(_part_family(name))
        if adapter is None:
            assert isinstance(value, bytes), name
            return value
        return adapter.dump_json(value, by_alias=True)

    def decode_part(self, name: str, body: bytes) -> object:
        """Decode the stored body of a part. Return the body itself for a part of type `bytes`, and
        for an unknown family.

        For an invalid body, return the replacement that `damaged_parts` makes for this family of
        parts. Raises ValueError if the family has no replacement.

        Args:
            name: the name of the part, for example `trials/0`.
        """
        family = _part_family(name)
        adapter = self._part_adapters.get(family)
        if adapter is None:
            return body
        try:
            return _decode_json(adapter, body)
        except ValueError as error:
            if (make_value := self.damaged_parts.get(family)) is None:
                raise
            return make_value(name, _error_text(error))

    def select_unknown_fields(self, body: bytes) -> bytes:
        """Return the fields of an encoded state that this version does not know, without braces.

        Return b"" if all fields are known. Raises ValueError for invalid JSON.
        """
        return select_unknown(parse_json(body), self.names_in_code)

    def select_unknown_part_fields(self, name: str, body: bytes) -> bytes:
        """Return the fields of a part's stored body that this version does not know, without
        braces.

        Return b"" if all fields are known, for a part whose type is no dataclass, for an unknown
        part, and for a body that cannot be parsed.
        """
        kind = self.part_types.get(_part_family(name))
        if not is_dataclass(kind):
            return b""
        try:
            return select_unknown(parse_json(body), set(stored_field_names(kind).values()))
        except ValueError:
            return b""

    def encode_part_without_defaults(self, name: str, value: object) -> bytes:
        """Encode a part's value without defaults, so that replays can compare values across
        versions.

        Return a value of type `bytes` unchanged. Raises AssertionError for a value other than
        `bytes` in a family of type `bytes` or an unknown family.
        """
        adapter = self._part_adapters.get(_part_family(name))
        if adapter is None:
            return self.encode_part(name, value)
        return adapter.dump_json(value, exclude_defaults=True, by_alias=True)


class _ActorTypes(Mapping[str, ActorType]):
    """The actor types by name. A type is created, and its modules are imported, on first use.

    Args:
        make_functions: functions named `_make_NAME`, which create the types.
    """

    def __init__(self, *make_functions: Callable[[], ActorType]) -> None:
        self._make_functions = {
            make.__name__.removeprefix("_make_"): make for make in make_functions
        }
        self._created = dict[str, ActorType]()

    def __getitem__(self, name: str) -> ActorType:
        """Return the actor type of a name, always as a single object.

        Raises KeyError for an unknown name.
        """
        if (actor_type := self._created.get(name)) is not None:
            return actor_type
        # If several threads create a type at once, all threads must return a single object.
        return self._created.setdefault(name, self._make_functions[name]())

    def __iter__(self) -> Iterator[str]:
        return iter(self._make_functions)

    def __len__(self) -> int:
        return len(self._make_functions)


# The imports are inside the functions because these imports take a third of a cold start
# (bench/cold_starts.py, bench/gcp_cold_starts.py). Most calls use at most two actor types.


def _make_experiment() -> ActorType:
    """Build the actor type of experiments. Imports the experiment's modules."""
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
    """Build the actor type of trials. Imports the trial's modules."""
    from control_plane.actors.messages.trial import TrialMessage
    from control_plane.actors.trial import actor
    from control_plane.actors.trial.checkpoints import (
        CHECKPOINT_PARTS,
        CheckpointRecord,
        damaged_record,
    )
    from control_plane.actors.trial.state import TrialState

    return ActorType(
        TrialState,
        TrialMessage,
        "TrialCreated",
        actor.step,
        actor.fallback,
        part_types={CHECKPOINT_PARTS: CheckpointRecord},
        takes_deliveries=True,
        damaged_parts={CHECKPOINT_PARTS: damaged_record},
    )


def _make_pool() -> ActorType:
    """Build the actor type of resource pools. Imports the pool's modules."""
    from control_plane.actors.messages.pool import PoolMessage, PoolSettings
    from control_plane.actors.ordered_map import Directory, Leaf
    from control_plane.actors.pool import actor
    from control_plane.actors.pool.agent_kinds import AGENT_KINDS, AgentKinds
    from control_plane.actors.pool.machine_checks import GANG_CHECKS, GangChecks

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
            GANG_CHECKS: GangChecks,
            AGENT_KINDS: AgentKinds,
        },
        journal_kept_ms=JOURNAL_KEPT_MS,
    )


def _make_agent() -> ActorType:
    """Build the actor type of agents. Imports the agent's modules."""
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
    """Return the type of the actor at an address. Raises KeyError for an unknown type."""
    return ACTOR_TYPES[actor_type_name(address)]


def encode_message_for(address: str, message: object) -> EncodedMessage:
    """Encode a message for the mailbox of the actor at `address`. Return the stored name and JSON.

    Raises KeyError for an unknown type of actor, or a message that the actor does not accept.
    Nothing is mailed.
    """
    return actor_type_at(address).encode_message(message)


def parse_json(body: bytes) -> Any:
    """Parse stored JSON into Python values. Raises ValueError for invalid JSON.

    JSON of older versions may be nested deeper than pydantic's parser allows, and is parsed as well
    (`parse_stored`).
    """
    try:
        return from_json(body)
    except ValueError:
        return parse_stored(body)


def parse_compressed_json(body: bytes) -> Any:
    """Decompress (zlib) and parse stored JSON.

    Raises ValueError for damaged compressed data and for invalid JSON.
    """
    try:
        content = zlib.decompress(body)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    return parse_json(content)


def _decode_json(adapter: TypeAdapter[Any], body: bytes) -> Any:
    """Decode stored JSON into a value of the adapter's type.

    JSON that pydantic cannot parse is parsed with `parse_stored`. Values that a newer version
    appended to tuples are ignored. Raises ValueError for an invalid value.
    """
    try:
        return adapter.validate_json(body)
    except ValidationError as error:
        if error.errors(include_input=False)[0]["type"] not in ("json_invalid", "too_long"):
            raise
    return validate_without_appended(adapter, parse_stored(body))


def _error_text(error: ValueError) -> str:
    """Return the text of an error, cut off after 200 characters.

    For a validation error, this is the place and message of the first fault, such as `state.files:
    Field required`. The invalid value is left out. The text of another error may have several
    lines.
    """
    if isinstance(error, ValidationError):
        fault = error.errors(include_input=False, include_url=False)[0]
        return f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}"[:200]
    return str(error)[:200]


def _part_family(name: str) -> str:
    """Return a part's name up to and including the first "/": `queue/` for `queue/7`.

    A name without "/" is returned unchanged.
    """
    head, slash, _ = name.partition("/")
    return head + slash
