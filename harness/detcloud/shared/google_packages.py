"""Google's packages from the agent's code, for images without them.

Bundled packages are pure Python, because images have various versions of Python and processors. But
`google.auth.crypt` imports `cryptography`, a compiled package. A stand-in replaces the module in
Pythons without `cryptography`. Trials get tokens from their agent or from the machine, so they sign
nothing. Only the key of a user's service account needs a signature.
"""

from __future__ import annotations

import importlib.util
import sys
import warnings
from types import ModuleType
from typing import NoReturn

from detcloud.shared.bundled_packages import is_bundled, offer_bundle

_BUNDLE = "gcs"
_MODULE = "google.auth.crypt"
_REFUSAL = (
    "the key of a service account needs the package cryptography, which this image lacks; add it "
    "to environment.pip, or name an image that has it"
)


def offer_google_packages() -> None:
    """Make the bundled packages of Google Cloud Storage importable if the image lacks them.

    Without `cryptography`, put a stand-in in place of the bundled `google.auth.crypt`. Functions of
    the stand-in raise DefaultCredentialsError of `google.auth.exceptions`. Do nothing if
    `google.cloud.storage` is installed, or if the agent's code does not contain Google's packages.
    """
    if not offer_bundle(_BUNDLE, "google.cloud.storage") or _MODULE in sys.modules:
        return
    # Google's client then compares MD5 digests, which hashlib computes fast.
    warnings.filterwarnings("ignore", "As the c extension couldn't be imported", RuntimeWarning)
    if is_bundled(_BUNDLE, "google.auth") and importlib.util.find_spec("cryptography") is None:
        sys.modules[_MODULE] = _StandIn(_MODULE)


class _Refusing(type):
    """The type of the stand-in's classes, whose methods refuse every call."""

    def __getattr__(cls, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return _refuse


class _StandIn(ModuleType):
    """The stand-in: a module with a class of any name."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Refusing(name, (), {})


def _refuse(*_arguments: object, **_options: object) -> NoReturn:
    """Raise DefaultCredentialsError."""
    from google.auth.exceptions import DefaultCredentialsError

    raise DefaultCredentialsError(_REFUSAL)
