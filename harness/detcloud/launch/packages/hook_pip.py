"""Skips `pip install` commands of a startup hook that an earlier run has executed.

Each interpreter that a hook starts calls `main` first. Pip itself needs seconds to find that all
packages are installed. A command is skipped if the overlay, the virtual environment of the trial,
contains the packages of the same command in the same folder. Commands without stored packages run,
and are recorded if they succeed.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from detcloud.launch.packages.layers import COMMANDS_FILE
from detcloud.launch.packages.overlay import HOOK_VARIABLE

OF_ONE_RUN = ("-e", "--editable", "-t", "--target", "--prefix", "--root")


def main() -> None:
    """Run or skip a `pip install` of this process, and exit the process.

    If COMMANDS_FILE of the overlay, the trial's virtual environment, has the command, skip the
    command and exit with 0. Otherwise run pip, add a successful command to the file, and exit with
    pip's code, 128 + n after signal n.

    Return without effect if the process runs no `pip install`, or runs outside of the overlay. Also
    return for commands whose packages only this run can use.
    """
    words = install_words(sys.orig_argv)
    overlay = os.environ.get("VIRTUAL_ENV", "")
    if words is None or sys.prefix != overlay or is_of_one_run(words):
        return
    record = {"words": words, "folder": _own_folder(overlay)}
    path = Path(overlay, COMMANDS_FILE)
    if record in read_commands(path):
        print(f"[detcloud] installed by an earlier run: pip install {' '.join(words)}", flush=True)
        os._exit(0)
    import subprocess

    variables = {k: v for k, v in os.environ.items() if k != HOOK_VARIABLE}
    code = subprocess.run(
        [sys.executable, *sys.orig_argv[1:]], env=variables, check=False
    ).returncode
    if code == 0:
        # Replace the file, since the present file may be a hard link into a layer.
        lines = [*read_commands(path), record]
        draft = path.with_name(f"{COMMANDS_FILE}.new")
        draft.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
        draft.replace(path)
    os._exit(code if code >= 0 else 128 - code)


def install_words(argv: Sequence[str]) -> list[str] | None:
    """Return the arguments after `install` in an interpreter's command line that runs pip.

    `argv` begins with the interpreter. Recognised are `python -m pip install ...` and `python
    /PATH/pip install ...`, the command line of pip's own script. Return None for any other command
    line, also with options before `-m`.
    """
    rest = list(argv[1:])
    if rest[:2] == ["-m", "pip"]:
        words = rest[2:]
    elif rest and os.path.basename(rest[0]).startswith("pip"):  # noqa: PTH119
        words = rest[1:]
    else:
        return None
    return words[1:] if words[:1] == ["install"] else None


def read_commands(path: Path) -> list[object]:
    """Return the recorded commands, a JSON value for each line of the file.

    Return an empty list if the file is missing, unreadable or has an invalid line.
    """
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError):
        return []


def _own_folder(overlay: str) -> str:
    """Return the working directory relative to `overlay`.

    The overlay's place differs in each run.
    """
    return os.path.relpath(os.getcwd(), overlay)  # noqa: PTH109


def is_of_one_run(words: Sequence[str]) -> bool:
    """Return whether a command installs packages that only the present run can use.

    Return True if a word begins with one of OF_ONE_RUN: options for editable code or for another
    target. Also return True if the file after `-r` or `--requirement` has an editable line or
    cannot be read.
    """
    if any(word.startswith(option) for word in words for option in OF_ONE_RUN):
        return True
    return any(
        _has_editable_line(after)
        for word, after in pairwise(words)
        if word in ("-r", "--requirement")
    )


def _has_editable_line(file: str) -> bool:
    """Return whether a requirements file has a line `-e` or `--editable`.

    Return True if the file cannot be read. Included requirements files are not read.
    """
    try:
        text = Path(file).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True
    return any(line.strip().startswith(("-e", "--editable")) for line in text.splitlines())
