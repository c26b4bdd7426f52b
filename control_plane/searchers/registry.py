"""The searchers there are, found by looking into the folder `methods`, and what is stored of them.

A searcher from elsewhere is added with `register` before anything of it is decoded.
"""

import pkgutil
from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import reduce
from importlib import import_module
from operator import or_
from typing import Annotated, Any

from control_plane.searchers import methods
from control_plane.searchers.method import MethodPlan, MethodState
from control_plane.searchers.spec import SearcherSpec

AnySpec = SearcherSpec[Any, Any]

_specs: dict[str, AnySpec] = {}
_specs_by_plan_type: dict[type, AnySpec] = {}


def register(spec: AnySpec) -> None:
    """Add a searcher; ValueError if its kinds are those of another one."""
    if spec.name in _specs:
        raise ValueError(f"there is a searcher {spec.name} already")
    for other in _specs.values():
        _check_distinct(spec, other)
    _specs[spec.name] = spec
    _specs_by_plan_type.setdefault(spec.plan_type, spec)


def searcher_specs() -> tuple[AnySpec, ...]:
    """Every searcher, in the order of lists."""
    return tuple(sorted(_specs.values(), key=lambda spec: (spec.listing_order, spec.name)))


def searcher_spec(name: str) -> AnySpec:
    """The searcher of that name; KeyError if there is none."""
    return _specs[name]


def find_spec(name: str) -> AnySpec | None:
    """The searcher of that name, None if there is none."""
    return _specs.get(name)


def spec_of_plan(plan: MethodPlan) -> AnySpec:
    """A searcher with such plans; those that share a type of plan share what is done with it."""
    return _specs_by_plan_type[type(plan)]


def plan_types() -> tuple[type, ...]:
    """The types of all plans, in the order of `searcher_specs`."""
    return tuple(dict.fromkeys(spec.plan_type for spec in searcher_specs()))


def state_types() -> tuple[type, ...]:
    """The types of all states, in the order of `searcher_specs`."""
    return tuple(dict.fromkeys(spec.state_type for spec in searcher_specs()))


class OneOfRegistered:
    """Annotates a field that holds a value of any registered type, for pydantic's adapters."""

    def __init__(self, types: Callable[[], tuple[type, ...]]) -> None:
        self.types = types

    def __get_pydantic_core_schema__(self, source: object, handler: Any) -> Any:
        """Return the schema of a union of the types that are registered when it is made."""
        return handler.generate_schema(reduce(or_, self.types()))


AnyMethodPlan = Annotated[MethodPlan, OneOfRegistered(plan_types)]
AnyMethodState = Annotated[MethodState, OneOfRegistered(state_types)]


def _check_distinct(spec: AnySpec, other: AnySpec) -> None:
    if spec.plan_type is other.plan_type:
        shared = (spec.state_type, spec.make_method) == (other.state_type, other.make_method)
        if not shared:
            raise ValueError(f"{spec.name} and {other.name} share plans, and not what follows")
    elif _stored_fields(spec.plan_type) == _stored_fields(other.plan_type):
        raise ValueError(
            f"stored plans of {spec.name} look like those of {other.name}: let {spec.name}'s `kind`"
            " have no default, so that it is always stored"
        )


def _stored_fields(plan_type: Any) -> set[str]:
    """The fields of a plan that messages always have: those without a default."""
    return {
        field.name
        for field in fields(plan_type)
        if field.default is MISSING and field.default_factory is MISSING
    }


def _register_builtin() -> None:
    for module in pkgutil.iter_modules(methods.__path__):
        spec = import_module(f"{methods.__name__}.{module.name}").SPEC
        assert spec.name == module.name, f"{module.name}.py holds the searcher {spec.name}"
        register(spec)


_register_builtin()
