"""Functions that may be called with the names that their parameters had in Determined."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])


def accept_names(**names: str) -> Callable[[Function], Function]:
    """Let a function's parameters be given by other names too: `accept_names(theirs="ours")`.

    Raises TypeError for a call that gives one of them twice, as Python does.
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
