"""The clean exit of processes that exchanged tensors by Gloo, which could be an abort.

`detcloud/shared/gloo_threads.py` says why.
"""

from __future__ import annotations

from pathlib import Path

from detcloud.shared.gloo_threads import await_gloo_threads_at_exit
from detcloud.shared.python_path import put_first_on_path, started_path

AT_START = str(Path(__file__).parent / "at_start")


def offer_clean_exit() -> None:
    """Have the interpreters that this process starts wait for Gloo's threads at their end."""
    put_first_on_path(AT_START)


def ensure_clean_exit() -> None:
    """Have this interpreter wait for Gloo's threads at its end, unless it does so by itself."""
    if AT_START not in started_path():
        await_gloo_threads_at_exit()
