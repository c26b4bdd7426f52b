"""How a process ended, in words."""

from __future__ import annotations

import signal

# A shell reports in this way the signal that ended its command.
_SHELL_SIGNALS = 128


def exit_text(code: int) -> str:
    """How a process ended whose exit code, or negative signal, is `code`, for behind its name."""
    if code < 0:
        return f"was ended by {signal_name(-code)}"
    return f"ended with exit code {code}{_remark(code)}"


def signal_name(number: int) -> str:
    """The name of a signal, with its usual cause if there is one."""
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
    return f"{name} (out of memory?)" if number == signal.SIGKILL else name


def _remark(code: int) -> str:
    try:
        signal.Signals(code - _SHELL_SIGNALS)
    except ValueError:
        return ""
    return f", that is {signal_name(code - _SHELL_SIGNALS)}"
