"""The hyperparameter space as a configuration writes it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal

from pydantic import (
    Field,
    PlainValidator,
    SerializeAsAny,
    TypeAdapter,
    ValidationInfo,
    field_validator,
)

from control_plane.config.problems import Finding, Loc, value_text
from control_plane.config.section import (
    Count,
    Section,
    choose,
    refusal,
    refuse,
    refuse_at,
    scope_of,
)
from control_plane.searchers import space

INTEGER_MAX: Final = (1 << 63) - 1
# Far enough from the limit of a double that no step of a grid passes it.
REAL_MAX: Final = 1e300
COUNT_REQUIRED: Final = "is required by the grid searcher", "how many points the grid has here"

Whole = Annotated[int, Field(ge=-INTEGER_MAX - 1, le=INTEGER_MAX)]
Real = Annotated[float, Field(ge=-REAL_MAX, le=REAL_MAX)]


class Parameter(Section):
    """One hyperparameter; `type` says how its values are chosen."""

    def space(self) -> space.Leaf:
        """The parameter as searchers take it."""
        raise AssertionError(f"{type(self).__name__} is not a kind of hyperparameter")


class Const(Parameter):
    """Always `val`, any YAML value."""

    type: Literal["const"] = "const"
    val: Any = None
    """The value; a plain value in place of the map means the same."""

    def space(self) -> space.Leaf:
        """See Parameter."""
        return space.Const(self.val)


class Range(Parameter):
    """A number between two bounds; `count` of them make the axis of a grid."""

    count: Count | None = Field(default=None, validate_default=True)
    """Points of a grid; required there."""

    @field_validator("count")
    @classmethod
    def _check_count(cls, count: int | None, info: ValidationInfo) -> int | None:
        if count is None and scope_of(info).searcher == "grid":
            refuse(*COUNT_REQUIRED)
        return count


class Int(Range):
    """An integer from minval to maxval; in the step era only a grid reaches maxval."""

    type: Literal["int"]
    minval: Whole
    """The lower bound."""
    maxval: Whole
    """The upper bound."""

    @field_validator("maxval")
    @classmethod
    def _check_bounds(cls, maxval: int, info: ValidationInfo) -> int:
        check_above(maxval, info.data.get("minval"))
        return maxval

    def space(self) -> space.Leaf:
        """See Parameter."""
        return space.Int(self.minval, self.maxval, self.count)


class Double(Range):
    """A number from minval to maxval."""

    type: Literal["double"]
    minval: Real
    """The lower bound."""
    maxval: Real
    """The upper bound."""

    @field_validator("maxval")
    @classmethod
    def _check_bounds(cls, maxval: float, info: ValidationInfo) -> float:
        check_above(maxval, info.data.get("minval"))
        return maxval

    def space(self) -> space.Leaf:
        """See Parameter."""
        return space.Double(self.minval, self.maxval, self.count)


class Log(Range):
    """base to the power of a number from minval to maxval."""

    type: Literal["log"]
    base: Annotated[float, Field(gt=0)]
    """The base."""
    minval: Real
    """The lower exponent."""
    maxval: Real
    """The upper exponent."""

    @field_validator("minval", "maxval")
    @classmethod
    def _check_power(cls, exponent: float, info: ValidationInfo) -> float:
        if info.field_name == "maxval":
            check_above(exponent, info.data.get("minval"))
        base = info.data.get("base", 1.0)
        try:
            power = math.pow(base, exponent)
        except OverflowError:
            power = math.inf
        if not 0 < power < math.inf:
            hint = "minval and maxval are exponents of base, not values"
            refuse(f"makes {base!r} ** {exponent!r} too large or too small for a double", hint)
        return exponent

    def space(self) -> space.Leaf:
        """See Parameter."""
        return space.Log(self.base, self.minval, self.maxval, self.count)


class Categorical(Parameter):
    """One of `vals`, each any YAML value."""

    type: Literal["categorical"]
    vals: Annotated[tuple[Any, ...], Field(min_length=1, strict=False)]
    """The values, each of any kind."""

    def space(self) -> space.Leaf:
        """See Parameter."""
        return space.Categorical(self.vals)


KINDS: Final[Mapping[str, type[Parameter]]] = MappingProxyType(
    {"const": Const, "int": Int, "double": Double, "log": Log, "categorical": Categorical}
)


def check_above(upper: float, lower: float | None) -> None:
    """Refuse `upper` unless it is above `lower`."""
    if lower is not None and not upper > lower:
        refuse(f"must be greater than minval ({value_text(lower)}), not {value_text(upper)}")


def _parameter(value: object, info: ValidationInfo) -> Parameter | dict[str, Any]:
    scope = scope_of(info)
    if isinstance(value, list) and scope.rules.nested_hyperparameters and scope.searcher == "grid":
        missing = [Finding(loc, *COUNT_REQUIRED) for loc in _countless(value)]
        if missing:
            raise refusal(missing)
    if not isinstance(value, Mapping):
        return Const(val=value)
    if value == {"type": "const"}:
        refuse_at(("val",), "is required", "the value; null is one too")
    if "type" in value or not scope.rules.nested_hyperparameters:
        return choose(value, "type", KINDS, info)
    return _GROUP.validate_python(value, context=info.context)


Group = dict[str, Any]
"""Names to a `Parameter` each, or (length era) to a nested group."""

Hyperparameters = dict[
    str, Annotated[SerializeAsAny[Parameter] | Group, PlainValidator(_parameter)]
]
_GROUP: Final[TypeAdapter[dict[str, Any]]] = TypeAdapter(Hyperparameters)


def _countless(value: Any, loc: Loc = ()) -> Iterator[Loc]:
    """The places of missing counts in a list, which is a constant although ranges stand in it."""
    match value:
        case list():
            for i, item in enumerate(value):
                yield from _countless(item, (*loc, i))
        case {"type": str(kind)}:
            if issubclass(KINDS.get(kind, Parameter), Range) and value.get("count") is None:
                yield (*loc, "count")
        case Mapping():
            for name, item in value.items():
                yield from _countless(item, (*loc, name))


def leaves(group: Group, loc: Loc = ("hyperparameters",)) -> Iterator[tuple[Loc, Parameter]]:
    """Every hyperparameter of a group and of those nested in it, with its place."""
    for name, member in group.items():
        if isinstance(member, Parameter):
            yield (*loc, name), member
        else:
            yield from leaves(member, (*loc, name))


def grid_points(group: Group, integers_extra: int) -> int:
    """The product of all axes; an integer axis has at most maxval - minval + `integers_extra`."""
    return math.prod(_axis(leaf, integers_extra) for _, leaf in leaves(group)) if group else 0


def space_of(group: Group) -> space.Group:
    """The space as searchers take it."""
    return space.Group(
        {
            name: member.space() if isinstance(member, Parameter) else space_of(member)
            for name, member in group.items()
        }
    )


def _axis(parameter: Parameter, integers_extra: int) -> int:
    match parameter:
        case Int(count=int(count), minval=minval, maxval=maxval):
            return min(count, maxval - minval + integers_extra)
        case Range(count=int(count)):
            return count
        case Categorical(vals=vals):
            return len(vals)
        case _:
            return 1
