"""A warning in a trial's log that is printed once, however often its cause recurs."""

from __future__ import annotations

import sys


class OneTimeWarning:
    """Prints the first of its texts to stderr, and nothing after that."""

    def __init__(self) -> None:
        self._was_printed = False

    def show(self, text: str) -> None:
        """Print the text, unless one was printed before."""
        if not self._was_printed:
            self._was_printed = True
            print(f"[detcloud] {text}; this is said once", file=sys.stderr, flush=True)
