"""The Lightning package: `lightning` or `pytorch_lightning`, preferably the imported package."""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec
from typing import Any

_NAMES = ("lightning.pytorch", "pytorch_lightning")
_NAME = next((name for name in _NAMES if name in sys.modules), "") or next(
    name for name in _NAMES if find_spec(name.partition(".")[0])
)
package: Any = importlib.import_module(_NAME)
loggers: Any = importlib.import_module(f"{_NAME}.loggers")
