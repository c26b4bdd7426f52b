"""The section `hyperparameters`: the hyperparameter space of a configuration."""

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

from control_plane.config.eras import Scope, scope_of
from control_plane.config.section import (
    Section,
    refusal,
    refuse,
    refuse_at,
    validate_variant,
)
from control_plane.field_types import Count
from control_plane.findings import Finding, Loc, value_text
from control_plane.searchers import space

INTEGER_MAX: Final = (1 << 63) - 1
# Far below the largest double, so that the computation of grid points does not overflow.
REAL_MAX: Final = 1e300
GRID_COUNT_HINT: Final = "how many points the grid has here"

Whole = Annotated[int, Field(ge=-INTEGER_MAX - 1, le=INTEGER_MAX)]
Real = Annotated[float, Field(ge=-REAL_MAX, le=REAL_MAX)]


class Parameter(Section):
    """A hyperparameter. The field `type` determines how its values are chosen."""

    def to_space(self) -> space.Leaf:
        """Return the hyperparameter in the form that searchers use. Subclasses override the method.

        Raises:
            AssertionError: the class does not override the method.
        """
        raise AssertionError(f"{type(self).__name__} is not a kind of hyperparameter")


class Const(Parameter):
    """A constant, which may be any YAML value."""

    type: Literal["const"] = "const"
    val: Any = None
    """The value. A plain value in place of the map means the same."""

    def to_space(self) -> space.Leaf:
        """Return the constant as a `space.Const`, the form that searchers use."""
        return space.Const(self.val)


class Range(Parameter):
    """A number between two bounds. A grid search tries `count` numbers of the range."""

    count: Count | None = Field(default=None, validate_default=True)
    """The number of points in a grid search. Required by grid searches only."""

    @field_validator("count")
    @classmethod
    def _check_count(cls, count: int | None, info: ValidationInfo) -> int | None:
        scope = scope_of(info)
        if count is None and scope.space_use == "grid":
            refuse(_missing_count_message(scope), GRID_COUNT_HINT)
        return count

    # The subclasses declare the bounds, each with its own type.
    @field_validator("maxval", check_fields=False)
    @classmethod
    def _check_bounds(cls, maxval: float, info: ValidationInfo) -> float:
        check_above(maxval, info.data.get("minval"))
        return maxval


class Int(Range):
    """An integer from minval to maxval. In the step era, only grid searches include maxval."""

    type: Literal["int"]
    minval: Whole
    """The lower bound."""
    maxval: Whole
    """The upper bound."""

    def to_space(self) -> space.Leaf:
        """Return the range as a `space.Int`, the form that searchers use."""
        return space.Int(self.minval, self.maxval, self.count)


class Double(Range):
    """A number from minval to maxval."""

    type: Literal["double"]
    minval: Real
    """The lower bound."""
    maxval: Real
    """The upper bound."""

    def to_space(self) -> space.Leaf:
        """Return the range as a `space.Double`, the form that searchers use."""
        return space.Double(self.minval, self.maxval, self.count)


class Log(Range):
    """The power of `base` with an exponent from minval to maxval."""

    type: Literal["log"]
    base: Annotated[float, Field(gt=0)]
    """The base of the power."""
    minval: Real
    """The lower exponent."""
    maxval: Real
    """The upper exponent."""

    @field_validator("minval", "maxval")
    @classmethod
    def _check_power(cls, exponent: float, info: ValidationInfo) -> float:
        base = info.data.get("base", 1.0)
        try:
            power = math.pow(base, exponent)
        except OverflowError:
            power = math.inf
        if not 0 < power < math.inf:
            hint = "minval and maxval are exponents of base, not values"
            refuse(f"makes {base!r} ** {exponent!r} too large or too small for a double", hint)
        return exponent

    def to_space(self) -> space.Leaf:
        """Return the range as a `space.Log`, the form that searchers use."""
        return space.Log(self.base, self.minval, self.maxval, self.count)


class Categorical(Parameter):
    """A choice from the list `vals`."""

    type: Literal["categorical"]
    vals: Annotated[tuple[Any, ...], Field(min_length=1, strict=False)]
    """The values to choose from. At least 1 value is required, and any YAML value is allowed."""

    def to_space(self) -> space.Leaf:
        """Return the choice as a `space.Categorical`, the form that searchers use."""
        return space.Categorical(self.vals)


PARAMETER_TYPES: Final[Mapping[str, type[Parameter]]] = MappingProxyType(
    {"const": Const, "int": Int, "double": Double, "log": Log, "categorical": Categorical}
)


def check_above(upper: float, lower: float | None) -> None:
    """Raise PydanticCustomError unless `upper` is greater than `lower`, the field `minval`.

    Without a valid `lower` (None), nothing is checked.
    """
    if lower is not None and not upper > lower:
        refuse(f"must be greater than minval ({value_text(lower)}), not {value_text(upper)}")


def _parse_parameter(value: object, info: ValidationInfo) -> Parameter | dict[str, Any]:
    scope = scope_of(info)
    nested = scope.rules.nested_hyperparameters
    if isinstance(value, list) and nested and scope.space_use == "grid":
        message = _missing_count_message(scope)
        missing = [Finding(loc, message, GRID_COUNT_HINT) for loc in _missing_counts(value)]
        if missing:
            raise refusal(missing)
    if not isinstance(value, Mapping):
        return Const(val=value)
    if value == {"type": "const"}:
        refuse_at(("val",), "is required", "the value; null is one too")
    if "type" in value or not scope.rules.nested_hyperparameters:
        return validate_variant(value, "type", PARAMETER_TYPES, info)
    return _GROUP.validate_python(value, context=info.context)


Group = dict[str, Any]
"""A map from names to hyperparameters. In the length era, a member may be a nested group."""

Hyperparameters = dict[
    str, Annotated[SerializeAsAny[Parameter] | Group, PlainValidator(_parse_parameter)]
]
_GROUP: Final[TypeAdapter[dict[str, Any]]] = TypeAdapter(Hyperparameters)


def _missing_count_message(scope: Scope) -> str:
    return f"is required by the {scope.searcher} searcher"


def _missing_counts(value: Any, loc: Loc = ()) -> Iterator[Loc]:
    """Yield the path of each missing `count` of a range inside `value`, at any depth.

    A list is a constant even if its entries look like ranges, but a grid search checks the entries
    nevertheless. A range is a map whose `type` is int, double or log.

    Args:
        loc: the path of `value`, which begins every path of the result.
    """
    match value:
        case list():
            for i, item in enumerate(value):
                yield from _missing_counts(item, (*loc, i))
        case {"type": str(kind)}:
            if (
                issubclass(PARAMETER_TYPES.get(kind, Parameter), Range)
                and value.get("count") is None
            ):
                yield (*loc, "count")
        case Mapping():
            for name, item in value.items():
                yield from _missing_counts(item, (*loc, name))


def leaf_parameters(
    group: Group, loc: Loc = ("hyperparameters",)
) -> Iterator[tuple[Loc, Parameter]]:
    """Yield the path and the value of each hyperparameter of a group and its nested groups.

    Args:
        loc: the path of the group, which begins every path of the result.
    """
    for name, member in group.items():
        if isinstance(member, Parameter):
            yield (*loc, name), member
        else:
            yield from leaf_parameters(member, (*loc, name))


def grid_point_count(group: Group, integers_extra: int) -> int:
    """Return the number of points of the grid over a group. Return 0 for an empty group.

    The number is the product of the points of all hyperparameters. A range has `count` points, and
    a categorical a point for each value. A constant and a range without a count have a single
    point.

    Args:
        integers_extra: the `grid_integers_extra` of the era. A range of integers contributes at
            most maxval - minval + `integers_extra` points.
    """
    return (
        math.prod(_axis_points(leaf, integers_extra) for _, leaf in leaf_parameters(group))
        if group
        else 0
    )


def to_search_space(group: Group) -> space.Group:
    """Return a group, nested groups included, as a `space.Group`, the form that searchers use."""
    return space.Group(
        {
            name: member.to_space() if isinstance(member, Parameter) else to_search_space(member)
            for name, member in group.items()
        }
    )


def _axis_points(parameter: Parameter, integers_extra: int) -> int:
    match parameter:
        case Int(count=int(count), minval=minval, maxval=maxval):
            return min(count, maxval - minval + integers_extra)
        case Range(count=int(count)):
            return count
        case Categorical(vals=vals):
            return len(vals)
        case _:
            return 1
