"""The public package, which training code and scripts import.

Errors and the version are imported at once. The modules load on first use, because every start of
`detcloud --version`, an agent or a trial imports this package (docs/benchmarks.md: `--version`).
"""

from __future__ import annotations

from detcloud.shared.errors import DetcloudError, InvalidHP
from detcloud.shared.version import __version__

# The import of typing would slow `detcloud --version` by milliseconds.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from detcloud import core as core
    from detcloud import pytorch as pytorch
    from detcloud import searcher as searcher
    from detcloud.client import Client as Client

__all__ = ["Client", "DetcloudError", "InvalidHP", "__version__", "core", "pytorch", "searcher"]

_LAZY_MODULES = ("core", "pytorch", "searcher")


def __getattr__(name: str) -> Any:
    if name not in (*_LAZY_MODULES, "Client"):
        raise AttributeError(f"module 'detcloud' has no attribute {name!r}")
    from importlib import import_module

    if name == "Client":
        return import_module("detcloud.client").Client
    return import_module(f"detcloud.{name}")
