"""Calls of callbacks' hooks, by present or former names, with the arguments that each accepts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from detcloud.pytorch.callback import FormerCallback, PyTorchCallback

Hook = Callable[..., None]

_FORMER_HOOKS: dict[str, Hook] = {
    "on_validation_start": PyTorchCallback.on_validation_step_start,
    "on_validation_end": PyTorchCallback.on_validation_step_end,
    "on_checkpoint_write_end": PyTorchCallback.on_checkpoint_end,
}
_VALIDATION_HOOKS: tuple[Hook, ...] = (
    PyTorchCallback.on_validation_start,
    PyTorchCallback.on_validation_epoch_start,
    PyTorchCallback.on_validation_epoch_end,
    PyTorchCallback.on_validation_end,
    PyTorchCallback.on_validation_step_start,
    PyTorchCallback.on_validation_step_end,
)


class Hooks:
    """The callbacks of a trial by name, called in the order of `build_callbacks`."""

    def __init__(self, callbacks: Mapping[str, PyTorchCallback]) -> None:
        self.callbacks = callbacks

    def call(self, hook: Hook, *arguments: object) -> None:
        """Call a hook of each callback with as many of the arguments as the method accepts.

        Only callbacks that override the hook are called. If the hook had a former name, all methods
        of the former name are called first. A FormerCallback gets paths as text. Raises exceptions
        of callbacks.
        """
        former = _FORMER_HOOKS.get(hook.__name__)
        for kind in (former, hook) if former else (hook,):
            for callback in self._overriding(kind):
                method = getattr(callback, kind.__name__)
                given = arguments
                if isinstance(callback, FormerCallback):
                    given = tuple(
                        str(argument) if isinstance(argument, Path) else argument
                        for argument in arguments
                    )
                method(*given[: argument_count(method)])

    def wants_batch_metrics(self) -> bool:
        """Return whether a callback accepts the metrics of each batch of a workload."""
        hook = PyTorchCallback.on_training_workload_end
        return any(
            argument_count(callback.on_training_workload_end) in (None, 2)
            for callback in self._overriding(hook)
        )

    def overrides(self, hook: Hook) -> bool:
        """Return whether a callback defines a hook, by the present or the former name."""
        former = _FORMER_HOOKS.get(hook.__name__)
        return any(self._overriding(each) for each in (hook, former) if each is not None)

    def observe_validations(self) -> bool:
        """Return whether a callback overrides a hook of validations, by the present or former name.

        An overridden hook may change the training's state during a validation.
        """
        return any(self._overriding(hook) for hook in _VALIDATION_HOOKS)

    def before_step(self) -> list[Callable[[list[Any]], None]]:
        """Return the methods to call with an optimizer's parameters before a step."""
        hook = PyTorchCallback.on_before_optimizer_step
        return [callback.on_before_optimizer_step for callback in self._overriding(hook)]

    def _overriding(self, hook: Hook) -> list[PyTorchCallback]:
        """Return the callbacks that define the hook, in the class or as an attribute."""
        name = hook.__name__
        return [
            callback
            for callback in self.callbacks.values()
            if getattr(type(callback), name) is not hook or name in vars(callback)
        ]


def bind_names(method: Callable[..., Any], *names: str) -> Callable[..., Any]:
    """Return a function that takes values in the order of `names` and calls `method`.

    If the method accepts all these names, in any order or by `**`, values are passed by name.
    Otherwise, or if the method's first parameters are `names`, return `method` itself, which takes
    the values by position.
    """
    parameters = inspect.signature(method).parameters.values()
    by_place = inspect.Parameter.POSITIONAL_OR_KEYWORD
    if [x.name for x in parameters if x.kind is by_place][: len(names)] == [*names]:
        return method
    takes_all = any(x.kind is inspect.Parameter.VAR_KEYWORD for x in parameters)
    if not takes_all and not {*names} <= {x.name for x in parameters}:
        return method
    return lambda *values: method(**dict(zip(names, values, strict=True)))


def argument_count(method: Callable[..., Any]) -> int | None:
    """Return the number of positional arguments that a method accepts, or None for any number.

    Optional arguments count, `self` of a bound method does not. Raises ValueError for a callable
    without a signature.
    """
    kinds = [parameter.kind for parameter in inspect.signature(method).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return None
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(kind in positional for kind in kinds)
