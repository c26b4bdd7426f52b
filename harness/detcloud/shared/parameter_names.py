"""A decorator for functions that accept Determined's names of their parameters."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])


def accept_names(**names: str) -> Callable[[Function], Function]:
    """Return a decorator that gives parameters an alias: `accept_names(alias="parameter")`.

    The decorated function accepts the aliases as keyword arguments, without a warning. A call with
    both an alias and the parameter's name as keywords raises TypeError, as does Python itself if
    the parameter was passed by position.
    """

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            for theirs in names.keys() & options.keys():
                if names[theirs] in options:
                    raise TypeError(
                        f"{function.__name__}() got both {theirs!r} and {names[theirs]!r},"
                        " which are the same parameter"
                    )
                options[names[theirs]] = options.pop(theirs)
            return function(*arguments, **options)

        return cast(Function, call)

    return decorate
