"""Entrypoints: a trial class of the user's (`module:Outer.Inner`) or a command."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from detcloud import DetcloudError

if TYPE_CHECKING:
    from detcloud.pytorch import PyTorchTrial

_TRIAL_CLASS = re.compile(r"[a-zA-Z0-9_.]+:[a-zA-Z0-9_.]+")


def names_trial_class(entrypoint: str | list[str]) -> bool:
    """Whether it is `module:Class`; any other string and every list is a command."""
    return isinstance(entrypoint, str) and _TRIAL_CLASS.fullmatch(entrypoint) is not None


def command(entrypoint: str | list[str]) -> list[str]:
    """The arguments to run: a string goes through the shell. Raises DetcloudError if empty."""
    if isinstance(entrypoint, str):
        parts = ["sh", "-c", entrypoint] if entrypoint.strip() else []
    else:
        parts = entrypoint
    if not parts or not all(isinstance(part, str) for part in parts):
        raise DetcloudError(
            f"entrypoint {entrypoint!r} runs nothing: use module:TrialClass, a command or a list "
            "of strings"
        )
    return parts


def load_trial_class(entrypoint: str) -> type[PyTorchTrial]:
    """Imports the user's module, before torch or anything else of ours, and finds the class.

    Raises DetcloudError where there is no such module or class, or it is no PyTorchTrial; what
    the user's module raises itself passes through.
    """
    module_name, _, path = entrypoint.partition(":")
    if module_name.startswith("."):
        raise DetcloudError(
            f"entrypoint {entrypoint!r}: {module_name!r} starts with a dot; name the module from "
            f"the code's directory, {Path.cwd()}"
        )
    try:
        found: object = import_module(module_name)
    except ModuleNotFoundError as error:
        # A module that the user's own code misses is the user's traceback to read.
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise DetcloudError(
            f"entrypoint {entrypoint!r}: there is no module {error.name!r} in {Path.cwd()}; give "
            "the path of the file with dots and without .py"
        ) from None
    for part in path.split("."):
        if not part or not hasattr(found, part):
            raise DetcloudError(
                f"entrypoint {entrypoint!r}: {getattr(found, '__name__', found)} has no {part!r}; "
                f"its trial classes: {_trial_classes(module_name)}"
            )
        found = getattr(found, part)
    return _checked_class(found, entrypoint)


def _checked_class(found: object, entrypoint: str) -> type[PyTorchTrial]:
    from detcloud.pytorch import PyTorchTrial

    if not isinstance(found, type) or not issubclass(found, PyTorchTrial):
        kind = "another class" if isinstance(found, type) else f"of type {type(found).__name__}"
        raise DetcloudError(
            f"entrypoint {entrypoint!r} is {kind}; expected a subclass of "
            "detcloud.pytorch.PyTorchTrial"
        )
    if missing := ", ".join(sorted(getattr(found, "__abstractmethods__", ()))):
        raise DetcloudError(f"entrypoint {entrypoint!r} does not define: {missing}")
    return found


def _trial_classes(module_name: str) -> str:
    from detcloud.pytorch import PyTorchTrial

    names = [
        name
        for name, value in vars(sys.modules[module_name]).items()
        if isinstance(value, type) and issubclass(value, PyTorchTrial) and value is not PyTorchTrial
    ]
    return ", ".join(sorted(names)) or "none"
