"""Runs at the start of every interpreter of a trial, which has this folder first on its path.

It adds nothing to what code sees: at the end of a process that exchanged tensors it waits for
Gloo's threads (detcloud/shared/gloo_threads.py). Then it runs the module of this name that it
hides. Little is imported, since everything that a trial starts in Python pays for it.
"""

import atexit
import os
import sys
from importlib.machinery import PathFinder

HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120


def await_gloo_threads() -> None:
    """Wait for the threads of a process that torch.distributed was imported in."""
    if "torch.distributed" not in sys.modules:
        return
    import runpy

    place = os.path.join(os.path.dirname(HERE), "gloo_threads.py")  # noqa: PTH118, PTH120
    runpy.run_path(place)["await_gloo_threads"]()


def run_hidden_module() -> None:
    """Run the next `sitecustomize` of the path, and leave it in the place of this one."""
    places = [entry for entry in sys.path if os.path.abspath(entry) != HERE]  # noqa: PTH100
    spec = PathFinder.find_spec(__name__, places)
    if spec is None or spec.loader is None:
        return
    from importlib.util import module_from_spec

    sys.modules[__name__] = module_from_spec(spec)
    spec.loader.exec_module(sys.modules[__name__])


# Registered before all that the code registers, so it is called last.
atexit.register(await_gloo_threads)
run_hidden_module()
