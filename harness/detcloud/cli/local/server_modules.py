"""Child processes that run modules of the server, which the command line does not import."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from tempfile import TemporaryFile

from detcloud.cli.local.server import server_environment

BACKUPS = "local_cluster.backups"
"""The module that copies, restores and deletes the state of the local cluster."""
LineHandler = Callable[[str], bool]
"""Gets a line that a child wrote to stderr, and returns False if the line belongs to an error."""


def run_module(
    module: str, words: Sequence[str], handle_line: LineHandler = lambda line: False
) -> subprocess.CompletedProcess[str]:
    """Run `python -m MODULE` with the given words, and return the finished process.

    Wait for the end without a time limit. A non-zero exit code does not raise. The result's
    `stdout` is the whole output, and `stderr` has the lines for which `handle_line` returned False.
    The child inherits stdin. On an exception, for example Ctrl-C, the child is killed.

    Args:
        handle_line: gets each line of the child's stderr as soon as the line arrives. By default,
            all lines are kept.

    Raises:
        DetcloudError: the server or a package of the extra [server] is not installed.
    """
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
