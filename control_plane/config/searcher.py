"""The section `searcher`: the models of the options that searchers declare.

Each searcher is a module of control_plane/searchers/methods. This module does not depend on single
searchers. It makes the model of a searcher when a configuration first names the searcher.
"""

from __future__ import annotations

from types import new_class
from typing import Annotated, Any, Final, get_type_hints

from pydantic import ConfigDict, PlainValidator, SerializeAsAny, ValidationInfo

from control_plane.config.eras import Era, scope_of
from control_plane.config.section import Section, variant_name
from control_plane.searchers.options import OptionGroup, SearcherOptions
from control_plane.searchers.registry import searcher_spec, searcher_specs
from control_plane.searchers.spec import SearcherSpec


class SearcherSection(SearcherOptions, Section):
    """The base of the models of searchers. `searcher_model` makes a subclass for each searcher."""

    # A default may conflict with other options, so defaults are checked, too.
    model_config = ConfigDict(validate_default=True)


def searcher_names(era: Era) -> list[str]:
    """Return the names of the searchers that an era has, sorted by listing order and name."""
    return [spec.name for spec in searcher_specs() if _options(spec, era) is not None]


def searcher_model(name: str, era: Era) -> type[SearcherSection]:
    """Return the model of a searcher's section in an era. The same call returns the same class.

    Raises:
        KeyError: the searcher is unknown, or the era lacks the searcher.
    """
    options = _options(searcher_spec(name), era)
    if options is None:
        raise KeyError(name)
    model = _model(options, SearcherSection)
    assert issubclass(model, SearcherSection)
    return model


_models: Final[dict[type[OptionGroup], type[Section]]] = {}


def _options(spec: SearcherSpec[Any, Any], era: Era) -> type[SearcherOptions] | None:
    return spec.step_options if era is Era.STEP else spec.length_options


def _model(options: type[OptionGroup], base: type[Section]) -> type[Section]:
    """Return the model of a class of options, with models in place of nested option groups.

    Each model is made once and then cached.

    Args:
        options: the class of options.
        base: the section from which the model is derived.
    """
    if options in _models:
        return _models[options]
    groups = {
        name: _model(hint, Section)
        for name, hint in get_type_hints(options, include_extras=True).items()
        if isinstance(hint, type) and issubclass(hint, OptionGroup)
    }
    body: dict[str, Any] = {
        "__module__": options.__module__,
        "__doc__": options.__doc__,
        "__annotations__": groups,
    }
    if options.takes_unknown_fields:
        body["model_config"] = ConfigDict(extra="allow")
    model = new_class(options.__name__, (options, base), exec_body=lambda item: item.update(body))
    # If several threads make the model concurrently, all must use a single class.
    return _models.setdefault(options, model)


def _parse_searcher(value: object, info: ValidationInfo) -> SearcherSection:
    era = scope_of(info).rules.era
    name = variant_name(value, "name", searcher_names(era))
    return searcher_model(name, era).model_validate(value, context=info.context)


_NO_OPTIONS: Final[dict[str, Any]] = {"name": "", "metric": "none"}
NO_SEARCHER: Final = SearcherSection.model_construct(**_NO_OPTIONS)
"""The placeholder in a configuration without a searcher. Checked configurations never have it."""

AnySearcher = Annotated[SerializeAsAny[SearcherSection], PlainValidator(_parse_searcher)]
