"""The launcher of trial classes: an entrypoint `module:Outer.Inner` names a class of the user."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from detcloud.launch.gang import Gang
from detcloud.launch.launchers.command import CommandLauncher
from detcloud.shared.errors import DetcloudError
from detcloud.shared.launcher_names import is_trial_class

if TYPE_CHECKING:
    from detcloud.pytorch import PyTorchTrial

_GANG_LAUNCHER = ("detcloud.launch.torch_distributed", "--trial")


class TrialClassLauncher:
    """Trains a trial class with the framework's Trainer."""

    can_fork = True

    def accepts(self, entrypoint: object) -> bool:
        """Return whether the entrypoint is a string `module:Class`."""
        return is_trial_class(entrypoint)

    def run(self, entrypoint: str | list[str]) -> int:
        """Train the class and return the exit code.

        On a single slot, train in this process and return 0. Raises DetcloudError if the module or
        the class does not exist or is no trial, and exceptions of the module and the training. On
        several slots, run `torch_distributed` as a command. Return 0, 1 after a failure, 128 + n
        after signal n. Raises DetcloudError if the command cannot be started.
        """
        gang = Gang.from_environment()
        if gang.slots * gang.nodes > 1:
            return CommandLauncher().run([sys.executable, "-m", *_GANG_LAUNCHER, str(entrypoint)])
        train_class(str(entrypoint))
        return 0


def train_class(entrypoint: str) -> None:
    """Train the class in this process. The module may be written as a path with slashes and `.py`.

    Add the working directory to `sys.path` if it is missing. Raises DetcloudError if the module or
    the class does not exist, or if the class is no trial or lacks a method. Exceptions of the
    user's module and of the training are raised unchanged.
    """
    # The interpreter adds the code's directory, except with the option -P.
    if "" not in sys.path and os.getcwd() not in sys.path:  # noqa: PTH109
        sys.path.insert(0, "")
    file, _, path = entrypoint.partition(":")
    module = file.removeprefix("./").removesuffix(".py").replace("/", ".")
    _train(load_trial_class(f"{module}:{path}"))


def load_trial_class(entrypoint: str) -> type[PyTorchTrial]:
    """Import the user's module and return the trial class.

    The user's module is imported before torch and other heavy modules. Raises DetcloudError if the
    module or the class does not exist, or if the class is no trial or lacks a method. Exceptions of
    the user's module are raised unchanged.
    """
    module_name, _, path = entrypoint.partition(":")
    if module_name.startswith("."):
        raise DetcloudError(
            f"entrypoint {entrypoint!r}: {module_name!r} starts with a dot; name the module from "
            f"the code's directory, {Path.cwd()}"
        )
    try:
        named: object = import_module(module_name)
    except ModuleNotFoundError as error:
        # If the user's code imports a missing module, the user needs the traceback.
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise DetcloudError(
            f"entrypoint {entrypoint!r}: there is no module {error.name!r} in {Path.cwd()}; give "
            "the path of the file with dots and without .py"
        ) from None
    for part in path.split("."):
        if not part or not hasattr(named, part):
            raise DetcloudError(
                f"entrypoint {entrypoint!r}: {getattr(named, '__name__', named)} has no {part!r}; "
                f"its trial classes: {_trial_class_names(module_name)}"
            )
        named = getattr(named, part)
    return _check_trial_class(named, entrypoint)


def _check_trial_class(found: object, entrypoint: str) -> type[PyTorchTrial]:
    """Return `found` unchanged if `found` is a trial class.

    A trial class has a text attribute `framework`. Raises DetcloudError for any other object, and
    for a class that lacks an abstract method. The entrypoint only appears in the messages.
    """
    # The attribute `framework` names the module with the Trainer of the class.
    is_trial = isinstance(found, type) and isinstance(getattr(found, "framework", None), str)
    if not is_trial or not isinstance(found, type):
        kind = "another class" if isinstance(found, type) else f"of type {type(found).__name__}"
        raise DetcloudError(
            f"entrypoint {entrypoint!r} is {kind}; expected a subclass of "
            "detcloud.pytorch.PyTorchTrial"
        )
    if missing := ", ".join(sorted(getattr(found, "__abstractmethods__", ()))):
        raise DetcloudError(f"entrypoint {entrypoint!r} does not define: {missing}")
    return found


def _trial_class_names(module_name: str) -> str:
    """Return the names of the module's PyTorchTrial classes for a message, or "none".

    The module `module_name` must be imported. Only its top-level names count, sorted. Import torch,
    which takes seconds; raises ImportError if torch is not installed.
    """
    from detcloud.pytorch import PyTorchTrial

    names = [
        name
        for name, value in vars(sys.modules[module_name]).items()
        if isinstance(value, type) and issubclass(value, PyTorchTrial) and value is not PyTorchTrial
    ]
    return ", ".join(sorted(names)) or "none"


def _train(trial_class: type[PyTorchTrial]) -> None:
    """Train the class to the end with the framework's Trainer. Raises errors of the training."""
    framework = import_module(trial_class.framework)
    with framework.init() as context:
        framework.Trainer(trial_class(context), context).fit()
