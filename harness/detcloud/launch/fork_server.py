"""The fork server, `python -m detcloud.launch.fork_server DESCRIPTOR`: imports torch, forks trials.

The agent sends a launch's directory and its lock over the socket DESCRIPTOR. The fork is the
launch's supervisor (`detcloud.launch.supervisor`). The trial, which that forks in turn, goes on
here and is made equal to one that `python -m detcloud.launch.trial` began. No thread runs in this
process and nothing is computed in parallel, since a child of such a process could hang. It ends
with the agent, whose end of the socket closes then.

Imports are inside functions where a process forks before it needs them, or never does
(docs/benchmarks.md, `starts`: the time to the first line, the memory of the fork server).
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
    """Serve until the agent's end closes. Returns in the process of a trial, and only there."""
    os.setsid()
    install_fast_exit()
    # Nobody waits for the supervisors: the agent knows them by their locks.
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
    """Wait for a launch's directory and lock; this process ends with the other end."""
    try:
        request, descriptors, _, _ = socket.recv_fds(channel, REQUEST_BYTES_MAX, 1)
    except ConnectionError:
        os._exit(0)
    if not request:
        os._exit(0)
    return str(json.loads(request)["directory"]), descriptors[0]


def _send_answer(channel: socket.socket, answer: Mapping[str, object]) -> None:
    try:
        channel.send(json.dumps(answer).encode())
    except ConnectionError:
        os._exit(0)


def _import_all() -> None:
    """Import all that a trial of a class loads before it trains, and hide it from the collector."""
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
    # A trial must not run the finalizers of this process when it ends.
    for finalizer in list(vars(weakref.finalize).get("_registry", ())):
        finalizer.atexit = False
    gc.collect()
    # Counting references in a collection would copy every page in every child.
    gc.freeze()


def _supervise(directory: str, lock: int, changed: Mapping[str, str]) -> None:
    """Be a launch's supervisor to the end; returns in the trial's process.

    `changed` are the variables that the imports set.
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
    """The variables with this process's own folders replaced by the trial's."""
    rebased = dict(changed)
    for folder in ("TMPDIR", "HOME"):
        here, there = os.environ[folder], environment[folder]
        rebased = {name: value.replace(here, there) for name, value in rebased.items()}
    return rebased


def _become_trial(environment: Mapping[str, str], argv: list[str]) -> None:
    """Give the interpreter and the libraries the state that they have in a new process."""
    os.environ.clear()
    os.environ.update(environment)
    sys.orig_argv[:] = argv
    sys.path_importer_cache.pop(sys.path[0], None)
    sys.path[0] = os.getcwd()  # noqa: PTH109
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _reset_home_caches()
    _renew_randomness()


def _reset_home_caches() -> None:
    import site
    import tempfile

    site.USER_BASE = site.USER_SITE = None
    site.getusersitepackages()
    tempfile.tempdir = None


def _renew_randomness() -> None:
    import multiprocessing

    from detcloud.pytorch.forking import reseed_from_entropy

    multiprocessing.current_process().authkey = os.urandom(32)
    reseed_from_entropy()


def _run_trial() -> None:
    """Run the trial's module as `python -m` does: it is `__main__` then."""
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
