"""The clean exit of processes that exchanged tensors by Gloo, which could abort at their end.

`detcloud/shared/gloo_threads.py` explains the cause.
"""

from __future__ import annotations

from pathlib import Path

from detcloud.shared.gloo_threads import await_gloo_threads_at_exit
from detcloud.shared.python_path import put_first_on_path, started_path

AT_START = str(Path(__file__).parent / "at_start")


def offer_clean_exit() -> None:
    """Make all Python interpreters that this process starts wait for Gloo's threads at the end.

    Put the folder `at_start` first in PYTHONPATH of this process's environment, unless PYTHONPATH
    contains the folder. Interpreters that ignore PYTHONPATH do not wait. This call does not make
    this interpreter wait.
    """
    put_first_on_path(AT_START)


def ensure_clean_exit() -> None:
    """Make this interpreter wait up to 5 s for Gloo's threads at the end.

    Do nothing if PYTHONPATH contains the folder `at_start`, because the interpreter then waits
    already.
    """
    if AT_START not in started_path():
        await_gloo_threads_at_exit()
