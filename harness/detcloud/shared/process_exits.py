"""The end of a process in words."""

from __future__ import annotations

import signal

# Separates the cause in the message of a failed trial from the last lines of the trial's log.
LOG_QUOTE = "; the end of its log:"

# A shell's exit code is this number plus the signal that ended the command.
_SHELL_SIGNALS = 128


def exit_text(code: int) -> str:
    """Return a clause about the end of a process, to follow the process's name.

    `code` is the exit code, or a negative signal number. Examples are `ended with exit code 0` and
    `was ended by SIGTERM`. An exit code with which shells report a signal, such as 143, has a
    remark about the signal.
    """
    if code < 0:
        return f"was ended by {signal_name(-code)}"
    return f"ended with exit code {code}{_remark(code)}"


def signal_name(number: int) -> str:
    """Return the name of a signal. SIGKILL has the remark "(out of memory?)".

    Return `signal N` for an unknown number.
    """
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
