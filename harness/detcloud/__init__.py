"""detcloud, as training code imports it; `core` and `pytorch` load on first use."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    from detcloud import core as core
    from detcloud import pytorch as pytorch

__all__ = ["DetcloudError", "InvalidHP", "__version__", "core", "pytorch"]

# Written here so that the import costs no look into the installed packages.
__version__ = "0.1.0"

_LAZY = ("core", "pytorch")


class DetcloudError(Exception):
    """A failure whose message is all that the user needs: shown without a traceback."""


class InvalidHP(Exception):
    """Raised by training code: these hyperparameters cannot work, try no longer with them."""


def __getattr__(name: str) -> ModuleType:
    if name not in _LAZY:
        raise AttributeError(f"module 'detcloud' has no attribute {name!r}")
    from importlib import import_module

    return import_module(f"detcloud.{name}")
