"""`python -m detcloud.launch.template DESCRIPTOR`: torch is imported once, trials are forked.

The agent sends a launch's directory and its lock over the socket DESCRIPTOR. What is forked is the
launch's supervisor, as `detcloud.agent.supervisor` has it; the trial, which it forks in turn, goes
on here and is made equal to one that `python -m detcloud.launch.trial` began. This process does
nothing else: no thread runs in it and nothing is computed in parallel, since a child of such a
process could hang. It ends with the agent, whose end of the socket closes then.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING

from detcloud.launch import ending

if TYPE_CHECKING:
    from collections.abc import Mapping

TRIAL = "detcloud.launch.trial"
REQUEST_BYTES_MAX = 64 * 1024


def main() -> None:
    """Serve until the agent's end closes. Returns in the process of a trial, and only there."""
    os.setsid()
    ending.register()
    # Nobody waits for the supervisors: the agent knows them by their locks.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.set_inheritable(False)
    given = dict(os.environ)
    _import_all()
    made = {name: value for name, value in os.environ.items() if given.get(name) != value}
    modules = sorted({name.partition(".")[0] for name in sys.modules})
    _answer(channel, {"modules": modules})
    while True:
        directory, lock = _request(channel)
        supervisor = os.fork()
        if supervisor == 0:
            channel.close()
            _supervise(directory, lock, made)
            return
        os.close(lock)
        _answer(channel, {"supervisor": supervisor})


def _request(channel: socket.socket) -> tuple[str, int]:
    """A launch's directory and lock; this process ends with the other end."""
    try:
        request, descriptors, _, _ = socket.recv_fds(channel, REQUEST_BYTES_MAX, 1)
    except ConnectionError:
        os._exit(0)
    if not request:
        os._exit(0)
    return str(json.loads(request)["directory"]), descriptors[0]


def _answer(channel: socket.socket, answer: Mapping[str, object]) -> None:
    try:
        channel.send(json.dumps(answer).encode())
    except ConnectionError:
        os._exit(0)


def _import_all() -> None:
    """All that a trial of a class loads before it trains, out of the collector's sight."""
    import gc
    import multiprocessing  # noqa: F401
    import weakref

    import detcloud.agent.supervisor
    import detcloud.launch.entrypoint
    import detcloud.pytorch  # noqa: F401
    from detcloud.core.environment import packages
    from detcloud.pytorch.preloading import preload

    packages()
    preload()
    # What was made here is not a trial's to take apart when it ends.
    for finalizer in list(vars(weakref.finalize).get("_registry", ())):
        finalizer.atexit = False
    gc.collect()
    # Counting references in a collection would copy every page in every child.
    gc.freeze()


def _supervise(directory: str, lock: int, made: Mapping[str, str]) -> None:
    """Be a launch's supervisor to the end; returns in the trial's process.

    `made` are the variables that the imports set.
    """
    from detcloud.agent import supervisor

    try:
        output = os.open(
            f"{directory}/supervisor.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600
        )
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        supervisor.supervise(directory, lock, forks=True)
    except supervisor.Begun as begun:
        os.close(lock)
        environment = begun.launch["environment"]
        _become_trial({**_moved(made, environment), **environment}, begun.launch["stages"][-1][1])
        return
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(0)


def _moved(made: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """What imports derived from this process's folders, as they would from the trial's."""
    moved = dict(made)
    for folder in ("TMPDIR", "HOME"):
        here, there = os.environ[folder], environment[folder]
        moved = {name: value.replace(here, there) for name, value in moved.items()}
    return moved


def _become_trial(environment: Mapping[str, str], argv: list[str]) -> None:
    """What the interpreter and the libraries keep from before is made what a new process has."""
    os.environ.clear()
    os.environ.update(environment)
    sys.orig_argv[:] = argv
    sys.path_importer_cache.pop(sys.path[0], None)
    sys.path[0] = os.getcwd()  # noqa: PTH109
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _forget_home()
    _draw_entropy()


def _forget_home() -> None:
    import site
    import tempfile

    site.USER_BASE = site.USER_SITE = None
    site.getusersitepackages()
    tempfile.tempdir = None


def _draw_entropy() -> None:
    import multiprocessing

    from detcloud.pytorch.preloading import draw_entropy

    multiprocessing.current_process().authkey = os.urandom(32)
    draw_entropy()


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
