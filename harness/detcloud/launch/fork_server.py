"""The fork server, `python -m detcloud.launch.fork_server DESCRIPTOR`: imports torch, forks trials.

The agent sends a launch's directory and lock over the socket DESCRIPTOR. The fork becomes the
launch's supervisor (`detcloud.launch.supervisor`). The supervisor forks the trial, which continues
in this module and gets the state of a process of `python -m detcloud.launch.trial`. This process
runs no thread and computes nothing in parallel, because forks could hang. The process ends when the
agent ends, because the agent's end of the socket then closes.

Imports are inside functions if a process forks before the import or may never need it. That saves
time and memory (docs/benchmarks.md, `starts`).
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING

from detcloud.launch.fast_exit import install_fast_exit

if TYPE_CHECKING:
    from collections.abc import Mapping

TRIAL = "detcloud.launch.trial"
REQUEST_BYTES_MAX = 64 * 1024


def main() -> None:
    """Serve requests until the agent's end of the socket closes; the process then exits.

    Start a session, import the modules of a trial, and send their top-level names. For each
    request, fork a supervisor and send its process id. Return only in the forked process of a
    trial.
    """
    os.setsid()
    install_fast_exit()
    # No process waits for the supervisors, because the agent recognises supervisors by the locks.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.set_inheritable(False)
    before = dict(os.environ)
    _import_all()
    changed = {name: value for name, value in os.environ.items() if before.get(name) != value}
    modules = sorted({name.partition(".")[0] for name in sys.modules})
    _send_answer(channel, {"modules": modules})
    while True:
        directory, lock = _receive_request(channel)
        supervisor = os.fork()
        if supervisor == 0:
            channel.close()
            _supervise(directory, lock, changed)
            return
        os.close(lock)
        _send_answer(channel, {"supervisor": supervisor})


def _receive_request(channel: socket.socket) -> tuple[str, int]:
    """Wait for a request; return the launch's directory and the descriptor of the lock.

    If the agent's end of the socket has closed, end this process at once with the exit code 0.
    """
    try:
        request, descriptors, _, _ = socket.recv_fds(channel, REQUEST_BYTES_MAX, 1)
    except ConnectionError:
        os._exit(0)
    if not request:
        os._exit(0)
    return str(json.loads(request)["directory"]), descriptors[0]


def _send_answer(channel: socket.socket, answer: Mapping[str, object]) -> None:
    """Send an answer as JSON. Raises OSError other than ConnectionError.

    If the agent's end of the socket has closed, end this process at once with the exit code 0.
    """
    try:
        channel.send(json.dumps(answer).encode())
    except ConnectionError:
        os._exit(0)


def _import_all() -> None:
    """Import all modules that a trial class needs before training, and list the installed packages.

    Exclude the imported objects from garbage collection in the forks. Disable the finalizers that
    the imports have registered for the exit, in this process and in the forks.
    """
    import gc
    import multiprocessing  # noqa: F401
    import weakref

    import detcloud.launch.launchers
    import detcloud.launch.supervisor
    import detcloud.pytorch  # noqa: F401
    from detcloud.core.environment import packages
    from detcloud.pytorch.forking import preload_torch

    packages()
    preload_torch()
    # A trial must not run the finalizers of this process at the end.
    for finalizer in list(vars(weakref.finalize).get("_registry", ())):
        finalizer.atexit = False
    gc.collect()
    # Counting references in a collection would copy every page in every child.
    gc.freeze()


def _supervise(directory: str, lock: int, changed: Mapping[str, str]) -> None:
    """Run as the launch's supervisor and exit; return only in the forked process of the trial.

    `directory` is the launch's folder, `lock` the descriptor of its lock. `changed` are the
    environment variables that the imports have set. Output of the supervisor goes to
    supervisor.log. An exception is printed there, and the exit code is 1. Otherwise the exit code
    is 0, even if the trial failed.

    In the trial's process, close the lock and set the state of a new process. Raises KeyError
    there if TMPDIR or HOME is not set.
    """
    from detcloud.launch import supervisor

    try:
        output = os.open(
            f"{directory}/supervisor.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600
        )
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        supervisor.supervise(directory, lock, forks_trial=True)
    except supervisor.TrialForked as trial:
        os.close(lock)
        environment = trial.launch["environment"]
        argv = trial.launch["stages"][-1][1]
        _become_trial({**_rebase_folders(changed, environment), **environment}, argv)
        return
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(0)


def _rebase_folders(changed: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return `changed` with this process's TMPDIR and HOME replaced by the values in `environment`.

    The folders are replaced wherever a value contains them. Raises KeyError if a variable is
    missing here or in `environment`.
    """
    rebased = dict(changed)
    for folder in ("TMPDIR", "HOME"):
        here, there = os.environ[folder], environment[folder]
        rebased = {name: value.replace(here, there) for name, value in rebased.items()}
    return rebased


def _become_trial(environment: Mapping[str, str], argv: list[str]) -> None:
    """Give the interpreter and the libraries the state of a new process of the trial.

    `environment` replaces all environment variables. `argv`, the interpreter and its arguments,
    replaces `sys.orig_argv`; `sys.argv` stays. If the interpreter `argv[0]` is in an overlay, enter
    the overlay. The working directory replaces `sys.path[0]`. Restore Python's handler of SIGINT.
    Renew the cached folders of the user, and the random numbers.
    """
    os.environ.clear()
    os.environ.update(environment)
    sys.orig_argv[:] = argv
    _enter_overlay(argv[0])
    sys.path_importer_cache.pop(sys.path[0], None)
    sys.path[0] = os.getcwd()  # noqa: PTH109
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _reset_home_caches()
    _renew_randomness()


def _enter_overlay(python: str) -> None:
    """Make the overlay of the interpreter `python` the environment of this process.

    An overlay is a virtual environment with the trial's packages over the packages of the parent.
    Insert the overlay's packages before the parent's in `sys.path`. Set `sys.executable`, the
    prefixes of `sys` and the interpreter of multiprocessing. Do nothing if the interpreter is not
    in an overlay.
    """
    from multiprocessing import set_executable
    from pathlib import Path
    from site import getsitepackages

    from detcloud.launch.packages.overlay import current_python, site_packages_folder

    folder = Path(python).parents[1]
    if not (folder / "pyvenv.cfg").is_file():
        return
    parents = set(getsitepackages())
    place = next((n for n, entry in enumerate(sys.path) if entry in parents), len(sys.path))
    sys.path.insert(place, str(site_packages_folder(folder, current_python().version)))
    sys.executable = python
    sys.prefix = sys.exec_prefix = str(folder)
    set_executable(python)


def _reset_home_caches() -> None:
    """Recompute the user's folders of packages. The temporary folder is recomputed at its next use.

    Both then follow the present environment variables.
    """
    import site
    import tempfile

    site.USER_BASE = site.USER_SITE = None
    site.getusersitepackages()
    tempfile.tempdir = None


def _renew_randomness() -> None:
    """Set a new authentication key of multiprocessing, and reseed torch's and NumPy's generators.

    Otherwise all forks would have the key and the random numbers of the fork server.
    """
    import multiprocessing

    from detcloud.pytorch.forking import reseed_from_entropy

    multiprocessing.current_process().authkey = os.urandom(32)
    reseed_from_entropy()


def _run_trial() -> None:
    """Run the module TRIAL as `__main__`, as `python -m` does without arguments.

    Raises exceptions and SystemExit of the trial.
    """
    from importlib.abc import InspectLoader
    from importlib.util import find_spec, module_from_spec

    spec = find_spec(TRIAL)
    assert spec is not None
    assert isinstance(spec.loader, InspectLoader)
    module = module_from_spec(spec)
    module.__name__ = "__main__"
    module.__annotations__ = {}
    sys.modules["__main__"] = module
    sys.argv[:] = [str(spec.origin)]
    code = spec.loader.get_code(TRIAL)
    assert code is not None
    exec(code, module.__dict__)


if __name__ == "__main__":
    main()
    _run_trial()
