"""Types of configuration fields: bounds, lengths of training, and checks against other fields.

This module does not import pydantic, because searchers describe options with these types and most
functions of a cluster read no configuration. pydantic understands the types nevertheless. Bounds
are `annotated_types`. Other annotations have the method `__get_pydantic_core_schema__`, which
returns a plain dictionary.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, get_args

from annotated_types import Ge, Le, MinLen

from control_plane.actors.lengths import Unit
from control_plane.findings import Finding, Loc, nearest_name_hint, value_text

COUNT_MAX: Final = (1 << 53) - 1
BATCH_SIZE: Final = "global_batch_size"
"""The name of the hyperparameter that converts records and epochs into batches."""

LengthUnit = Literal["batches", "records", "epochs"]
LENGTH_UNITS: Final = get_args(LengthUnit)


class ValueRefused(ValueError):
    """A configuration value is refused.

    Args:
        message: the reason.
        hint: the advice to the user, or "".
        loc: the path of the fault inside the value. () for the value as a whole.
        value: the value at `loc`. Not needed if `loc` is ().
    """

    def __init__(self, message: str, hint: str = "", loc: Loc = (), value: object = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.loc = loc
        self.value = value

    def finding(self, loc: Loc, value: object) -> Finding:
        """Return the finding for `value`, which is at the path `loc` of a configuration.

        For a fault inside the value, the finding has the path and the value of the fault.
        """
        return Finding(
            (*loc, *self.loc), self.message, self.hint, self.value if self.loc else value
        )


@dataclass(frozen=True, slots=True)
class Length:
    """An amount of training: `count` of `unit`. In a period, a count of 0 switches the period
    off.
    """

    unit: Unit
    count: int
    is_plain: bool = field(default=False, compare=False)
    """Whether the configuration contains a plain number of batches. User code that reads the
    configuration may expect the plain number.
    """


@dataclass(frozen=True, slots=True)
class PlainForm:
    """Annotates a type whose values have a special form in configurations."""

    parse: Callable[[Any], Any]
    """Converts a value of a configuration into a value of the type. Raises ValueRefused."""
    render: Callable[[Any], object]
    """Converts a value of the type into a value of a configuration."""

    def __get_pydantic_core_schema__(self, source: object, handler: object) -> dict[str, Any]:
        """Return the pydantic-core schema that parses and renders values with these functions."""
        return {
            "type": "function-plain",
            "function": {"type": "no-info", "function": self.parse},
            "serialization": {"type": "function-plain", "function": self.render},
        }


@dataclass(frozen=True, slots=True)
class CrossCheck:
    """Annotates a field whose value is checked against the fields above."""

    check: Callable[[Any, Mapping[str, Any]], None]
    """Checks the parsed value, given the valid values of the fields above by name. Raises
    ValueRefused.
    """

    def __get_pydantic_core_schema__(
        self, source: object, handler: Callable[[object], Any]
    ) -> dict[str, Any]:
        """Return the pydantic-core schema that parses a value and then calls `check`."""

        def checked_value(value: Any, info: Any) -> Any:
            self.check(value, info.data)
            return value

        function = {"type": "with-info", "function": checked_value}
        return {"type": "function-after", "function": function, "schema": handler(source)}


class ListInput:
    """Annotates a tuple that YAML and JSON write as a list."""

    def __get_pydantic_core_schema__(
        self, source: object, handler: Callable[[object], Any]
    ) -> dict[str, Any]:
        """Return the pydantic-core schema of the tuple, extended to accept lists."""
        return {**handler(source), "strict": False}


@dataclass(frozen=True, slots=True)
class MissingHint:
    """Annotates a required field with the hint for a configuration that lacks the field."""

    text: str


def to_integer(value: Any) -> Any:
    """Return a whole float, for example 1e3, as an integer. Return other values unchanged."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def is_count(value: object, least: int) -> bool:
    """Return whether `value` is an integer from `least` to COUNT_MAX. A boolean is not a count."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= COUNT_MAX


def parse_steps(value: object) -> Length:
    """Parse a number of steps, at least 1; a whole float is accepted. Raises ValueRefused."""
    value = to_integer(value)
    if not isinstance(value, int) or not is_count(value, 1):
        bound = _missed_bound(value, 1)
        raise ValueRefused(f"must be a number of steps, {bound}, not {value_text(value)}")
    return Length("steps", value)


def parse_length(value: object) -> Length:
    """Parse a length, for example `{batches: 100}`, or a plain number of batches.

    The count is at least 1. A whole float is accepted as a count. Raises ValueRefused for other
    values, for unknown units, and unless a map has exactly one count that is not null.
    """
    value = to_integer(value)
    if isinstance(value, int) and not isinstance(value, bool):
        if not is_count(value, 1):
            raise ValueRefused(f"must be {_missed_bound(value, 1)}, not {value}")
        return Length("batches", value, is_plain=True)
    return parse_length_map(value, least=1)


def parse_length_map(value: object, least: int) -> Length:
    """Parse a length, for example `{batches: 100}`, with a count of at least `least`.

    Units with a null count are ignored. A whole float is accepted as a count. Raises ValueRefused
    for other values, for unknown units, and unless exactly one unit has a count.
    """
    if not isinstance(value, Mapping):
        raise ValueRefused(f"must be a length like {{batches: 100}}, not {value_text(value)}")
    for name in value:
        if name not in LENGTH_UNITS:
            hint = nearest_name_hint(name, LENGTH_UNITS)
            raise ValueRefused("is not a known unit", hint, (name,))
    counts = {name: to_integer(count) for name, count in value.items() if count is not None}
    if len(counts) != 1:
        message = "must have exactly one of batches, records and epochs"
        raise ValueRefused(message, "remove all but one")
    [(unit, count)] = counts.items()
    if not is_count(count, least):
        bound = _missed_bound(count, least)
        message = f"must be an integer of {bound}, not {value_text(count)}"
        raise ValueRefused(message, "", (unit,), count)
    return Length(unit, count)


def render_length(length: Length) -> dict[str, int] | int:
    """Return a length in the form of the configuration: a plain number, or a map with a single
    unit.
    """
    return length.count if length.is_plain else {length.unit: length.count}


def _missed_bound(value: object, least: int) -> str:
    """Return the bound that a refused number violates, for example "at least 1"."""
    is_more = isinstance(value, int) and value > COUNT_MAX
    return f"at most {COUNT_MAX}" if is_more else f"at least {least}"


def _render_steps(length: Length) -> int:
    return length.count


Text = Annotated[str, MinLen(1)]
Count = Annotated[int, Ge(1), Le(COUNT_MAX)]
CountOrZero = Annotated[int, Ge(0), Le(COUNT_MAX)]
Fraction = Annotated[float, Ge(0), Le(1)]

Steps = Annotated[Length, PlainForm(parse_steps, _render_steps)]
Measured = Annotated[Length, PlainForm(parse_length, render_length)]
MAX_LENGTH_HINT: Final = (
    "how long a trial trains, like {batches: 100}; in the step era max_steps or target_trial_steps"
)
MaxLength = Annotated[Measured, MissingHint(MAX_LENGTH_HINT)]
