"""Reading of terminals after the end of a program."""

import os


def read_terminal(terminal: int) -> str:
    """Return all text that a program has drawn on a terminal, whose other ends are closed.

    A single read may return only a part of the text.
    """
    drawn = b""
    while True:
        try:
            part = os.read(terminal, 1 << 16)
        except OSError:
            # Linux reports an error in place of an end.
            break
        if not part:
            break
        drawn += part
    return drawn.decode()
