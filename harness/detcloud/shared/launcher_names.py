"""The launchers and the trial class that an entrypoint may name."""

from __future__ import annotations

import re
from collections.abc import Sequence

LAUNCHERS = ("torch_distributed", "horovod", "deepspeed", "tensorflow", "autohorovod", "wrap_rank")
# The programs of detcloud.launch that do not train.
_PROGRAMS = ("notebook", "shell")
_TRIAL_CLASS = re.compile(r"[a-zA-Z0-9_.]+:[a-zA-Z0-9_.]+")
_TRIAL_OPTION = re.compile(r"\s--trial(?:\s+|=)(\S+:\S+)")
_LAUNCHER = re.compile(r"""(?:^|\s)-m\s*["']?(?:detcloud|determined)\.launch\.([A-Za-z0-9_.]+)""")


def unknown_launcher(entrypoint: str | Sequence[str]) -> str | None:
    """Return the first unknown launcher that the entrypoint names, or None.

    A launcher is a module of `detcloud.launch` or `determined.launch`, named after `-m` anywhere in
    the command. LAUNCHERS, `notebook` and `shell` are known. The result is the name within the
    package. An entrypoint without a launcher gives None. The words of a sequence are joined by
    spaces.
    """
    line = entrypoint if isinstance(entrypoint, str) else " ".join(entrypoint)
    names = [match[1] for match in _LAUNCHER.finditer(line)]
    return next((name for name in names if name not in (*LAUNCHERS, *_PROGRAMS)), None)


def is_trial_class(entrypoint: object) -> bool:
    """Whether the entrypoint is a string `module:Class`, and nothing else.

    Both names consist of ASCII letters, digits, `_` and `.`. The class need not exist. False for a
    sequence of words.
    """
    return isinstance(entrypoint, str) and _TRIAL_CLASS.fullmatch(entrypoint) is not None


def trial_class_of(entrypoint: str | Sequence[str]) -> str:
    """Return the trial class of an entrypoint: the entrypoint itself, or a launcher's `--trial`.

    Return "" for a script. The option `--trial CLASS` or `--trial=CLASS` counts only in a command
    with a launcher of `detcloud.launch` or `determined.launch`, also an unknown one, and only if
    the value contains a colon. The first such option counts.
    """
    if is_trial_class(entrypoint):
        return str(entrypoint)
    line = entrypoint if isinstance(entrypoint, str) else " ".join(entrypoint)
    found = _TRIAL_OPTION.search(line) if _LAUNCHER.search(line) else None
    return found[1] if found else ""
