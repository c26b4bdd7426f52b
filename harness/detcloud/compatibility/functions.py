"""Small functions of Determined that training code uses."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOG_FORMAT = "%(levelname)s: [%(process)s] %(name)s: %(message)s"
VERSION = "0.38.1"
"""The latest release of Determined with supported names."""


def set_logger(debug_enabled: bool) -> None:
    """Configure logging with Determined's format, at level DEBUG or INFO.

    Do nothing if logging is configured already.
    """
    level = logging.DEBUG if debug_enabled else logging.INFO
    logging.basicConfig(level=level, format=LOG_FORMAT)


@contextmanager
def import_from_path(path: str | Path) -> Iterator[None]:
    """Make the modules of a folder, such as a checkpoint's `code`, importable within the block.

    At the end of the block, modules that the block imported from the folder are forgotten.
    """
    folder = str(Path(path).resolve())
    known = set(sys.modules)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
        for name in set(sys.modules) - known:
            place = getattr(sys.modules[name], "__file__", None)
            if place and Path(place).is_relative_to(folder):
                del sys.modules[name]
