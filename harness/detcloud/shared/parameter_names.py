"""Functions that may be called with the names that their parameters had in Determined."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])


def accept_names(**names: str) -> Callable[[Function], Function]:
    """Decorate a function so that parameters have aliases: `accept_names(alias="parameter")`.

    A call that gives one parameter twice raises TypeError, as in Python.
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
