"""detcloud, as training code and scripts import it; all but the errors loads on first use."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from detcloud import core as core
    from detcloud import pytorch as pytorch
    from detcloud import searcher as searcher
    from detcloud.client import Client as Client

__all__ = ["Client", "DetcloudError", "InvalidHP", "__version__", "core", "pytorch", "searcher"]

# Written here so that the import costs no look into the installed packages.
__version__ = "0.1.0"

_LAZY_MODULES = ("core", "pytorch", "searcher")


class DetcloudError(Exception):
    """A failure whose message is all that the user needs: shown without a traceback."""


class InvalidHP(Exception):
    """Raised by training code: these hyperparameters cannot work, try no longer with them."""


def __getattr__(name: str) -> Any:
    if name not in (*_LAZY_MODULES, "Client"):
        raise AttributeError(f"module 'detcloud' has no attribute {name!r}")
    from importlib import import_module

    if name == "Client":
        return import_module("detcloud.client").Client
    return import_module(f"detcloud.{name}")
