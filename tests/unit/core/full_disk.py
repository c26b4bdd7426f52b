"""Simulation of a full disk for this process by a limit on file sizes."""

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Limit files to `size` bytes within the block: a larger write is cut, then raises OSError."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    # A limit sends a signal as well, which a full disk does not.
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
