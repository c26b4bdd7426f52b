"""The model code's startup-hook.sh. A shell sources the hook and then becomes the trial.

Exported variables, limits and background processes of the hook therefore last as long as the trial.
A failing command of the hook ends the hook and the trial.
"""

from __future__ import annotations

import codecs
import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

HOOK_FILE = "startup-hook.sh"
# The same name as in launch/packages/overlay.py, which the agent does not import here.
HOOK_VARIABLE = "DETCLOUD_HOOK"
_MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}
# The hook's shell creates this file in the folder of the supervisor's records after the hook. From
# then on the stage is the trial. The supervisor repeats the name, since it imports nothing here.
PASSED_FILE = "hook-passed"


def clean_hook(code: Path) -> list[str]:
    """Rewrite the startup hook in the folder `code` if Windows editors saved it, for Unix shells.

    Remove a byte order mark and carriage returns before line ends, and convert UTF-16 to UTF-8.
    Return a list with a single notice about the changes, or an empty list without changes. Raise
    OSError if the hook does not exist or cannot be rewritten.
    """
    hook = code / HOOK_FILE
    content = hook.read_bytes()
    changes = []
    for mark, encoding in _MARKS.items():
        if content.startswith(mark):
            content = content[len(mark) :].decode(encoding, "replace").encode()
            changes.append("a byte order mark")
            break
    if b"\r\n" in content:
        content = content.replace(b"\r\n", b"\n")
        changes.append("carriage returns at the ends of lines (CRLF)")
    if not changes:
        return []
    hook.write_bytes(content)
    return [f"{HOOK_FILE} has {' and '.join(changes)}, which the trial's copy does not have"]


def hook_command(
    code: Path, directory: Path, trial: Sequence[str], after_hook: Sequence[str] = ()
) -> list[str]:
    """Return the command line of a shell that sources the hook and then becomes the trial.

    If the hook itself calls `exit`, the shell ends there; after exit code 0, the caller must start
    the trial.

    Args:
        code: the folder of the hook, which is the working directory.
        directory: the folder in which the shell creates PASSED_FILE after the hook.
        trial: the command line of the trial.
        after_hook: a command between hook and trial. Its exit code is ignored.
    """
    quoted = shlex.quote(str(code)), shlex.quote(str(directory / PASSED_FILE)), shlex.join(trial)
    follow_up = f"{shlex.join(after_hook)}\n" if after_hook else ""
    script = (
        f"export {HOOK_VARIABLE}=1\nset -e\n. ./{HOOK_FILE}\nset +exu\nunset {HOOK_VARIABLE}\n"
        f"{follow_up}cd {quoted[0]} && : > {quoted[1]} && exec {quoted[2]}"
    )
    # The supervisor starts sh where an image has no bash.
    return ["bash", "-c", script]
