"""The check that the model code contains the module or the script of an entrypoint.

Only simple entrypoints are understood: a trial class, or a single Python command without shell
syntax. A file that a startup hook, a mount or an installed package may add is only possibly
missing.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from control_plane.config.experiment import ExperimentConfig
from detcloud.shared.launcher_names import trial_class_of

HOOK: Final = "startup-hook.sh"
_SHELL_SYNTAX: Final = re.compile(r"[;&|<>$`(){}*?\n\\~#]")
_PYTHON: Final = re.compile(r"(?:.*/)?python(?:\d+(?:\.\d+)?)?")
_FLAGS: Final = re.compile(r"-[bBdEiIOPqsSuvx]+")
_SUFFIXES: Final = (".py", ".pyc", ".so")


@dataclass(frozen=True, slots=True)
class MissingCode:
    """A script or a module that the entrypoint names and the model code lacks."""

    text: str
    """The predicate of a message. The subject of the message is the entrypoint."""
    is_certain: bool
    """Whether trials certainly lack the script or module, because nothing else can provide it."""


def find_missing_code(config: ExperimentConfig, files: Collection[str]) -> MissingCode | None:
    """Return the module or script that the entrypoint names and the model code lacks.

    Return None if the model code has the module or script, or if the entrypoint is absent or not
    understood.

    Args:
        files: the paths of all files of the model code, relative to its folder.
    """
    entrypoint = config.entrypoint
    if entrypoint is None:
        return None
    may_grow = HOOK in files or any(
        not posixpath.isabs(mount.container_path) for mount in config.bind_mounts
    )
    if trial_class := trial_class_of(entrypoint):
        return _missing_module(trial_class, files, may_grow=may_grow)
    script = _script_of(entrypoint)
    if script is None or script in files:
        return None
    return MissingCode(f"runs {script}, which the model code does not have", not may_grow)


def names_code(config: ExperimentConfig) -> bool:
    """Return whether `find_missing_code` understands the entrypoint. False without entrypoint."""
    entrypoint = config.entrypoint
    return entrypoint is not None and bool(trial_class_of(entrypoint) or _script_of(entrypoint))


def _missing_module(
    trial_class: str, files: Collection[str], *, may_grow: bool
) -> MissingCode | None:
    """Return the module of a trial class if the model code lacks the module, else None.

    The module is certainly missing only if `may_grow` is False and the model code has the module's
    top package. Otherwise the whole package may be installed on the machine of the trial.

    Args:
        trial_class: for example "package.module:Class".
        may_grow: whether a startup hook or a mount may add files to the model code.
    """
    name = trial_class.partition(":")[0].removeprefix("./").removesuffix(".py")
    path = name.replace(".", "/")
    if _has_module(path, files):
        return None
    top = path.partition("/")[0]
    is_ours = "/" in path and _has_module(top, files)
    text = f"names the module {path.replace('/', '.')}, which the model code does not have"
    return MissingCode(text, is_ours and not may_grow)


def _has_module(path: str, files: Collection[str]) -> bool:
    """Return whether the files contain the package or the module at `path`.

    A package is a folder with at least one file. A module has a suffix of _SUFFIXES, for example
    "a/b.py" or "a/b.cpython-312-x86_64-linux-gnu.so" for the path "a/b".
    """
    folder, _, name = path.rpartition("/")
    return any(file.startswith(f"{path}/") for file in files) or any(
        posixpath.dirname(file) == folder
        and posixpath.basename(file).partition(".")[0] == name
        and file.endswith(_SUFFIXES)
        for file in files
    )


def _script_of(entrypoint: str | Sequence[str]) -> str | None:
    """Return the normalized relative path of the script that a Python command runs.

    Python may have a path and a version, as in `/usr/bin/python3.11`. Return None for a command
    that is not `python [FLAGS] SCRIPT.py ...`, for a text with shell syntax, and for a script
    outside the working directory.
    """
    words = _words_of(entrypoint)
    if not words or _PYTHON.fullmatch(words[0]) is None:
        return None
    rest = words[1:]
    while rest and _FLAGS.fullmatch(rest[0]):
        rest = rest[1:]
    if not rest or rest[0].startswith("-") or posixpath.isabs(rest[0]):
        return None
    path = posixpath.normpath(rest[0])
    return None if path.startswith("..") or not path.endswith(".py") else path


def _words_of(entrypoint: str | Sequence[str]) -> list[str]:
    """Return the words of a command. Return [] for a text with shell syntax or open quotes.

    A list of words is returned as it is, even with shell syntax, because no shell runs the list.
    """
    if not isinstance(entrypoint, str):
        return list(entrypoint)
    if _SHELL_SYNTAX.search(entrypoint):
        return []
    try:
        return shlex.split(entrypoint)
    except ValueError:
        return []
