"""A disk that is full, as a process sees it: no file may grow beyond so many bytes."""

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Within the block a write beyond `size` bytes of a file is cut, then refused."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    # A limit sends a signal as well, which a full disk does not.
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
