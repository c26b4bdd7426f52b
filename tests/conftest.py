"""What every test may use: `require`, for a package that a machine may lack."""

import importlib
import os
from types import ModuleType

import pytest


def require(name: str) -> ModuleType:
    """Imports a package, or skips the test (fails it when DETCLOUD_REQUIRE names the package).

    DETCLOUD_REQUIRE is a comma list: on a machine that is meant to have everything, a test must
    not vanish because an installation went wrong.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        reason = f"{name} is not installed ({error}); `make setup` installs it"
    if name in os.environ.get("DETCLOUD_REQUIRE", "").split(","):
        pytest.fail(f"{reason}, and DETCLOUD_REQUIRE names it", pytrace=False)
    pytest.skip(reason, allow_module_level=True)
