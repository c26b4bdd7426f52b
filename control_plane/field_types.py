"""Types of fields in configurations: bounds, lengths of training, checks against other fields.

They import no pydantic, as the searchers do not, whose options they describe: most functions of a
cluster read no configuration. It understands them all the same: the bounds are `annotated_types`,
and other annotations have the method that it asks for a schema, which is a plain dictionary.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, get_args

from annotated_types import Ge, Le, MinLen

from control_plane.actors.lengths import Unit
from control_plane.findings import Finding, Loc, nearest_name_hint, value_text

COUNT_MAX: Final = (1 << 53) - 1
BATCH_SIZE: Final = "global_batch_size"
"""The hyperparameter by which records and epochs become batches."""

LengthUnit = Literal["batches", "records", "epochs"]
LENGTH_UNITS: Final = get_args(LengthUnit)


class ValueRefused(ValueError):
    """A value is refused: why, what to do about it, and where inside of it the fault is.

    `value` is what is at `loc`; for the value as a whole it need not be given.
    """

    def __init__(self, message: str, hint: str = "", loc: Loc = (), value: object = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.loc = loc
        self.value = value

    def finding(self, loc: Loc, value: object) -> Finding:
        """Return the problem of `value`, which was refused at `loc`."""
        return Finding(
            (*loc, *self.loc), self.message, self.hint, self.value if self.loc else value
        )


@dataclass(frozen=True, slots=True)
class Length:
    """`count` of `unit`; 0 switches a period off.

    `is_plain`: it was written as a number, which code that reads its configuration may expect.
    """

    unit: Unit
    count: int
    is_plain: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class PlainForm:
    """Annotates a type that configurations write in a form of its own.

    `parse` turns a plain value into one of the type, ValueRefused for any other; `render` turns it
    into the plain value again.
    """

    parse: Callable[[Any], Any]
    render: Callable[[Any], object]

    def __get_pydantic_core_schema__(self, source: object, handler: object) -> dict[str, Any]:
        """Return the schema of pydantic-core for values that are parsed and rendered like this."""
        return {
            "type": "function-plain",
            "function": {"type": "no-info", "function": self.parse},
            "serialization": {"type": "function-plain", "function": self.render},
        }


@dataclass(frozen=True, slots=True)
class CrossCheck:
    """Annotates a field that is judged with the fields above it.

    `check` takes the value and the valid ones of the fields above by name; it raises ValueRefused.
    """

    check: Callable[[Any, Mapping[str, Any]], None]

    def __get_pydantic_core_schema__(
        self, source: object, handler: Callable[[object], Any]
    ) -> dict[str, Any]:
        """Return the schema of pydantic-core for a value that is checked after it was parsed."""

        def checked_value(value: Any, info: Any) -> Any:
            self.check(value, info.data)
            return value

        function = {"type": "with-info", "function": checked_value}
        return {"type": "function-after", "function": function, "schema": handler(source)}


class ListInput:
    """Annotates a tuple, which YAML and JSON write as a list."""

    def __get_pydantic_core_schema__(
        self, source: object, handler: Callable[[object], Any]
    ) -> dict[str, Any]:
        """Return the schema of the tuple, which takes lists as well."""
        return {**handler(source), "strict": False}


@dataclass(frozen=True, slots=True)
class MissingHint:
    """Annotates a required field with what its refusal says when it is missing."""

    text: str


def to_integer(value: Any) -> Any:
    """Return a whole float like 1e3 as the integer that it means, and all else as it is."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def is_count(value: object, least: int) -> bool:
    """Whether `value` is an integer (and no boolean) that counts something."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= COUNT_MAX


def parse_steps(value: object) -> Length:
    """Parse a number of steps; ValueRefused for anything else."""
    value = to_integer(value)
    if not isinstance(value, int) or not is_count(value, 1):
        bound = _missed_bound(value, 1)
        raise ValueRefused(f"must be a number of steps, {bound}, not {value_text(value)}")
    return Length("steps", value)


def parse_length(value: object) -> Length:
    """Parse `{batches: 100}` and the like, or a number of batches; ValueRefused for all else."""
    value = to_integer(value)
    if isinstance(value, int) and not isinstance(value, bool):
        if not is_count(value, 1):
            raise ValueRefused(f"must be {_missed_bound(value, 1)}, not {value}")
        return Length("batches", value, is_plain=True)
    return parse_length_map(value, least=1)


def parse_length_map(value: object, least: int) -> Length:
    """Parse `{batches: 100}` and the like, at least `least`; ValueRefused for anything else."""
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
    """Render a length as it was written: `{batches: 100}` and the like, or a number of batches."""
    return length.count if length.is_plain else {length.unit: length.count}


def _missed_bound(value: object, least: int) -> str:
    """Return the bound that a refused number misses, in words."""
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
