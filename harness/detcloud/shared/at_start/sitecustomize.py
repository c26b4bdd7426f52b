"""The module that every Python interpreter of a trial runs at the start.

The module lets a process that exchanged tensors wait at its end for Gloo's threads
(detcloud/shared/gloo_threads.py). Then it runs the hidden module of the same name. Code sees no
other difference. The module imports little, because every Python process of a trial runs it.
"""

import atexit
import os
import sys
from importlib.machinery import PathFinder

HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120


def await_gloo_threads() -> None:
    """Wait up to 5 s for Gloo's threads if this process has imported torch.distributed.

    Do nothing otherwise.
    """
    if "torch.distributed" not in sys.modules:
        return
    import runpy

    place = os.path.join(os.path.dirname(HERE), "gloo_threads.py")  # noqa: PTH118, PTH120
    runpy.run_path(place)["await_gloo_threads"]()


def run_hidden_module() -> None:
    """Run the next `sitecustomize` on the path, which replaces this module in `sys.modules`.

    Do nothing if the path has no other. Errors of the module are passed on.
    """
    places = [entry for entry in sys.path if os.path.abspath(entry) != HERE]  # noqa: PTH100
    spec = PathFinder.find_spec(__name__, places)
    if spec is None or spec.loader is None:
        return
    from importlib.util import module_from_spec

    sys.modules[__name__] = module_from_spec(spec)
    spec.loader.exec_module(sys.modules[__name__])


# The first registered function is called last, after all functions that code registers.
atexit.register(await_gloo_threads)
run_hidden_module()
