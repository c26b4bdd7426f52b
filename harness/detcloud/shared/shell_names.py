"""Names of environment variables that shells accept."""

from __future__ import annotations

import re

_SHELL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def is_shell_name(name: str) -> bool:
    """Whether shells accept a variable with this name. Many shells drop other variables.

    Names consist of ASCII letters, digits and `_`, and do not begin with a digit.
    """
    return _SHELL_NAME.fullmatch(name) is not None
