"""The registry of searchers, and the types of stored plans and states.

The import of this module registers all modules of the folder `methods`. Any other searcher must be
added with `register` before its plans and states are decoded.
"""

import pkgutil
from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import reduce
from importlib import import_module
from operator import or_
from typing import Annotated, Any, get_type_hints

from control_plane.searchers import methods
from control_plane.searchers.method import MethodPlan, MethodState
from control_plane.searchers.spec import SearcherSpec

AnySpec = SearcherSpec[Any, Any]

_specs: dict[str, AnySpec] = {}
_specs_by_plan_type: dict[type, AnySpec] = {}


def register(spec: AnySpec) -> None:
    """Add a searcher to the registry.

    Raises:
        ValueError: the name is registered already, or stored plans of the searcher could be
            mistaken for plans of another searcher. Also raised for the plan type of another
            searcher together with a different state type or method.
    """
    if spec.name in _specs:
        raise ValueError(f"a searcher {spec.name} is already registered")
    for other in _specs.values():
        _check_distinct(spec, other)
    _specs[spec.name] = spec
    _specs_by_plan_type.setdefault(spec.plan_type, spec)


def searcher_specs() -> tuple[AnySpec, ...]:
    """Return all registered searchers, sorted by listing_order and name."""
    return tuple(sorted(_specs.values(), key=lambda spec: (spec.listing_order, spec.name)))


def searcher_spec(name: str) -> AnySpec:
    """Return the searcher called `name`. Raise KeyError if the name is not registered."""
    return _specs[name]


def find_spec(name: str) -> AnySpec | None:
    """Return the searcher called `name`. None if the name is not registered."""
    return _specs.get(name)


def can_continue(name: str) -> bool:
    """Return whether ended searches of the searcher `name` can be continued.

    False if the name is not registered.
    """
    spec = find_spec(name)
    return spec is not None and spec.can_continue


def spec_of_plan(plan: MethodPlan) -> AnySpec:
    """Return the first registered searcher whose plans have the type of `plan`.

    Searchers with the same plan type also share `state_type` and `make_method`. Raise KeyError if
    the type is not registered.
    """
    return _specs_by_plan_type[type(plan)]


def plan_types() -> tuple[type, ...]:
    """Return the distinct types of plans, in the order of `searcher_specs`."""
    return tuple(dict.fromkeys(spec.plan_type for spec in searcher_specs()))


def state_types() -> tuple[type, ...]:
    """Return the distinct types of states, in the order of `searcher_specs`."""
    return tuple(dict.fromkeys(spec.state_type for spec in searcher_specs()))


class OneOfRegistered:
    """An annotation, for pydantic, of a field whose value has any registered type."""

    def __init__(self, types: Callable[[], tuple[type, ...]]) -> None:
        """Set the function that returns the registered types."""
        self.types = types

    def __get_pydantic_core_schema__(self, source: object, handler: Any) -> Any:
        """Return pydantic's schema for the union of the types that are registered now."""
        return handler.generate_schema(reduce(or_, self.types()))


AnyMethodPlan = Annotated[MethodPlan, OneOfRegistered(plan_types)]
AnyMethodState = Annotated[MethodState, OneOfRegistered(state_types)]


def _check_distinct(spec: AnySpec, other: AnySpec) -> None:
    if spec.plan_type is other.plan_type:
        shared = (spec.state_type, spec.make_method) == (other.state_type, other.make_method)
        if not shared:
            raise ValueError(
                f"{spec.name} and {other.name} have the same plan_type: give both the same"
                " state_type and make_method"
            )
    elif _stored_form(spec.plan_type) == _stored_form(other.plan_type):
        raise ValueError(
            f"stored plans of {spec.name} look like those of {other.name}: let {spec.name}'s `kind`"
            " have no default, so that it is always stored"
        )


def _stored_form(plan_type: Any) -> tuple[set[str], object]:
    """Return the names of the fields that every stored plan has, and the type of `kind`.

    Fields with a default are not stored. The type is None if `kind` has a default.
    """
    names = {
        field.name
        for field in fields(plan_type)
        if field.default is MISSING and field.default_factory is MISSING
    }
    return names, get_type_hints(plan_type)["kind"] if "kind" in names else None


def _register_builtin() -> None:
    for module in pkgutil.iter_modules(methods.__path__):
        spec = import_module(f"{methods.__name__}.{module.name}").SPEC
        assert spec.name == module.name, f"{module.name}.py defines the searcher {spec.name}"
        register(spec)


_register_builtin()
