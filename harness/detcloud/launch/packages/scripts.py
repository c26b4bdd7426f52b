"""Console scripts of a parent environment, rewritten to run in the caller's overlay.

An overlay is a trial's virtual environment over the parent environment, which runs the agent.

The first line of an installed script names an interpreter, which determines the visible packages. A
rewritten script reads the interpreter from a variable, by default the original interpreter.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import tempfile
from pathlib import Path

from detcloud.shared.files import delete_tree

INTERPRETER_VARIABLE = "DETCLOUD_PYTHON"
# Larger files are no scripts.
SCRIPT_BYTES_MAX = 256 * 1024
_DIRECT = re.compile(rb"#![ \t]*(?P<python>\S+)[ \t]*(?P<options>[^\n]*)\n")
# Installers use this form for paths that are long or contain blanks.
_THROUGH_SHELL = re.compile(
    rb"#!/bin/sh\n'''exec' \"?(?P<python>[^\"\n]+?)\"? (?P<options>)\"\$0\" \"\$@\"\n' '''\n"
)
_PIP = """#!/bin/sh
# The parent environment has no pip: the overlay gets the one that comes with Python.
python="${{{variable}:-{fallback}}}"
"$python" -c 'import pip' 2>/dev/null || "$python" -m ensurepip >/dev/null || exit
exec "$python" -m pip "$@"
"""


def write_parent_scripts(programs: Path, folder: Path) -> None:
    """Write rewritten copies of the Python scripts in `programs` into the new folder `folder`.

    A copy runs in the overlay, the trial's virtual environment, of its caller. Add a `pip` if
    `programs` has none. The folder appears complete or not at all. If the launch of another trial
    has written the folder, keep that folder. Raises OSError if `programs` cannot be read or the
    folder cannot be written.
    """
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=folder.parent))
    try:
        copy_scripts(programs, draft)
        if not (programs / "pip").exists():
            text = _PIP.format(variable=INTERPRETER_VARIABLE, fallback=programs / "python3")
            for name in ("pip", "pip3"):
                _write_program(draft / name, text.encode())
        draft.rename(folder)
    except OSError:
        delete_tree(draft)
        # Another launch has written the folder in the meantime.
        if not folder.is_dir():
            raise


def copy_scripts(programs: Path, folder: Path) -> None:
    """Write the scripts in `programs` that start an interpreter of `programs`, rewritten, to
    `folder`.

    A rewritten script runs in the overlay, the trial's virtual environment, of its caller. Skip
    programs that are no such scripts, are too large or cannot be read. Raises OSError if `programs`
    cannot be listed, or if a script cannot be written, for example without `folder`.
    """
    with os.scandir(programs) as entries:
        for entry in entries:
            rewritten = _rewritten_script(entry, programs)
            if rewritten is not None:
                _write_program(folder / entry.name, rewritten)


def _rewritten_script(entry: os.DirEntry[str], programs: Path) -> bytes | None:
    """Return a script with a first line that reads the interpreter from INTERPRETER_VARIABLE.

    Return None for programs that are no script of an interpreter in `programs`, are too large, or
    cannot be read.
    """
    try:
        if not entry.is_file() or entry.stat().st_size > SCRIPT_BYTES_MAX:
            return None
        content = Path(entry.path).read_bytes()
    except OSError:
        return None
    match = _THROUGH_SHELL.match(content) or _DIRECT.match(content)
    if match is None:
        return None
    python = Path(os.fsdecode(match["python"]))
    if python.parent != programs or not python.name.startswith("python"):
        return None
    options = os.fsdecode(match["options"]).strip()
    words = f'"${{{INTERPRETER_VARIABLE}:-{_in_quotes(str(python))}}}"'
    if options:
        words += f" {shlex.quote(options)}"
    # Bash keeps variables whose names a shell cannot hold.
    shell = shutil.which("bash") or "/bin/sh"
    head = f"#!{shell}\n'''exec' {words} \"$0\" \"$@\"\n' '''\n"
    return os.fsencode(head) + content[match.end() :]


def _in_quotes(path: str) -> str:
    """Return a path, escaped for the double quotes of a shell."""
    return re.sub(r'([\\"$`])', r"\\\1", path)


def _write_program(path: Path, content: bytes) -> None:
    """Write a file that only the user can read, change and run. Raises OSError."""
    path.write_bytes(content)
    path.chmod(0o700)
