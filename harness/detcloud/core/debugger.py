"""The debugger of rank 0: installed if necessary, and awaited before the training code runs."""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from detcloud.shared.debugger_place import FOLDER, bind_debugger, debugger_place
from detcloud.shared.errors import DetcloudError
from detcloud.shared.trial_directory import TrialDirectory
from detcloud.shared.trial_packages import PackageMissing, TrialPackage

DEBUGPY = TrialPackage("debugpy", (1, 8), 2, "the debugger")
ATTACH_SECONDS = 1_800
"""The default of `debugger.attach_timeout`."""
POLL_SECONDS = 0.1
_SETTINGS = {
    # Breakpoints by changed bytecode would stay in forked processes, which have no debugger.
    "PYDEVD_USE_FRAME_EVAL": "NO",
    # A warning about the standard library's own frames.
    "PYDEVD_DISABLE_FILE_VALIDATION": "1",
}
# The process waits once: a program that detaches its debugger may call `core.init` again.
_waited = threading.Event()


def await_debugger(directory: TrialDirectory) -> None:
    """Wait in rank 0 until a debugger is attached, or the cluster asks the trial to stop.

    Return at once in other processes, and in a process that has waited. Report the place of the
    debugger, and print notices to the log.

    Raises:
        DetcloudError: the debugger could not be installed or started, or no debugger was attached
            within `debugger.attach_timeout`.
    """
    if directory.rank != 0 or _waited.is_set():
        return
    _waited.set()
    settings = directory.spec.config.get("debugger") or {}
    seconds = float(settings.get("attach_timeout") or ATTACH_SECONDS)
    try:
        is_attached = start_debugger(Path(os.environ["HOME"]))
    except (PackageMissing, OSError, ImportError, AttributeError, RuntimeError) as error:
        text = str(error) if isinstance(error, PackageMissing) else repr(error)
        raise DetcloudError(f"the debugger could not be started: {text}") from None
    spec = directory.spec
    directory.report.append("environment", debugger=debugger_place(spec))
    _print(
        f"rank 0 waits for a debugger, at most {seconds:g} s: attach one with `detcloud experiment "
        f"debug {spec.experiment_id}`"
    )
    deadline = time.monotonic() + seconds
    while not is_attached():
        if directory.directives.read().preempt is not None:
            _print("the trial continues without a debugger, because the cluster asks it to stop")
            return
        if time.monotonic() > deadline:
            raise DetcloudError(
                f"no debugger was attached within {seconds:g} s (debugger.attach_timeout), so the "
                "trial ends and frees its slots"
            )
        time.sleep(POLL_SECONDS)
    _print("a debugger is attached")


def start_debugger(home: Path) -> Callable[[], bool]:
    """Accept debuggers at the socket file of a trial's home, and install debugpy if necessary.

    Return a function that returns whether a debugger is attached and has set its breakpoints.

    Raises:
        PackageMissing: debugpy could not be installed.
        OSError: the home cannot be written.
        AttributeError: debugpy has no longer the parts that detcloud uses.
    """
    folder = home / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    DEBUGPY.obtain(folder, lambda: _print(f"installing {DEBUGPY.name} for the debugger ..."))
    listener = _FileListener(socket.AF_UNIX)
    bind_debugger(home, listener)
    os.environ.update({**_SETTINGS, **os.environ})
    debugpy: Any = importlib.import_module("debugpy")
    importlib.import_module("debugpy.server")
    pydevd: Any = importlib.import_module("pydevd")
    _ = pydevd.create_server_socket
    # debugpy can only listen on ports, and the separate adapter of debugpy has no password.
    pydevd.create_server_socket = lambda host, port: listener
    debugpy.listen(("127.0.0.1", 0), in_process_debug_adapter=True)
    os.register_at_fork(after_in_child=_leave_debugger)
    is_attached: Callable[[], bool] = debugpy.is_client_connected
    return is_attached


class _FileListener(socket.socket):
    """A Unix socket in place of the socket of a port."""

    def getsockname(self) -> tuple[str, int]:
        """Return an address in the form that debugpy expects."""
        return ("127.0.0.1", 0)


def _leave_debugger() -> None:
    """Switch breakpoints off in a forked process, which no debugger could continue.

    Called after each fork, for example in the workers of a data loader.
    """
    with contextlib.suppress(Exception):
        # Otherwise the debugger prints a warning about other users of this function.
        importlib.import_module("pydevd_tracing").restore_sys_set_trace_func()
    sys.settrace(None)
    threading.settrace(None)
    with contextlib.suppress(Exception):
        importlib.import_module("_pydev_bundle.pydev_monkey").undo_patch_thread_modules()
    monitoring = getattr(sys, "monitoring", None)
    if monitoring is not None:
        # Since Python 3.12, breakpoints are events of this interface.
        for event in vars(monitoring.events).values():
            if isinstance(event, int) and event.bit_count() == 1:
                with contextlib.suppress(ValueError):
                    monitoring.register_callback(monitoring.DEBUGGER_ID, event, None)


def _print(text: str) -> None:
    print(f"[detcloud] {text}", flush=True)
