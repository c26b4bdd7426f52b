"""Failures of an entrypoint that every further run would repeat, for example a missing module.

The agent detects the failures in the end of the log, because an entrypoint may be any program. A
failure counts only if the code reported nothing of its training before, since then the loading of
the code failed. The code may import a module after `core.init`, which reports the environment.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detcloud.agent.runtime import Status

_RANK = re.compile(r"\[rank=\d+\] ?")
_NOTICE = "[detcloud] "
# The last line of a program that could not load its code, by exit code.
_LAST_LINES = {
    1: re.compile(
        r"(?:ModuleNotFoundError|ImportError|SyntaxError|IndentationError|TabError): "
        r"|detcloud: entrypoint "
        r"|\S*python[\d.]*: (?:No module named |Error while finding module specification for )"
    ),
    2: re.compile(r"\S*python[\d.]*: can't open file .*\[Errno 2\]"),
    127: re.compile(r"(?:\S*sh|.*: line \d+): (?:\d+: )?.*not found$"),
}
# Another machine may have a library that this machine lacks.
_MACHINE = re.compile(
    r"shared object|undefined symbol|dlopen|DLL load failed|mapped? segment|lib\w+\.so|GLIBC",
    re.IGNORECASE,
)


def is_lasting_failure(status: Status, log_tail: str, *, has_trained: bool) -> bool:
    """Whether the trial's code cannot be loaded, in this run and in any later run.

    False for failures of other stages, after a kill, and for failures that depend on the machine,
    such as a missing shared library.

    Args:
        status: the end of the launch.
        log_tail: the last lines of the log.
        has_trained: whether the code reported anything of its training, or a checkpoint.
    """
    pattern = _LAST_LINES.get(status.code or 0)
    if status.stage != "trial" or status.killed or has_trained or pattern is None:
        return False
    lines = [_RANK.sub("", line, count=1) for line in log_tail.splitlines()]
    spoken = [line for line in lines if line.strip() and not line.startswith(_NOTICE)]
    last = spoken[-1] if spoken else ""
    return pattern.match(last) is not None and _MACHINE.search(last) is None
