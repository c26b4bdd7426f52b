"""Modules of the server's package, run as children: the command line imports none of them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from tempfile import TemporaryFile

from detcloud.cli.local.server import server_environment

LineHandler = Callable[[str], bool]
"""Takes a line that a child wrote to stderr; True where the line was no error."""


def run_module(
    module: str, words: Sequence[str], handle_line: LineHandler = lambda line: False
) -> subprocess.CompletedProcess[str]:
    """Run `python -m module`; lines that `handle_line` takes are not among its errors."""
    command = [sys.executable, "-P", "-m", module, *words]
    # A file has room for an answer of any size while the other stream is read.
    with (
        TemporaryFile("w+", encoding="utf-8", errors="replace") as answer,
        subprocess.Popen(
            command,
            # Both ends speak UTF-8, whatever the terminal does.
            env={**server_environment(), "PYTHONIOENCODING": "utf-8", "PYTHONUTF8": "1"},
            stdout=answer,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
        ) as process,
    ):
        try:
            assert process.stderr is not None
            errors = "".join(line for line in process.stderr if not handle_line(line))
        except BaseException:
            process.kill()
            raise
        code = process.wait()
        answer.seek(0)
        return subprocess.CompletedProcess(command, code, answer.read(), errors)
