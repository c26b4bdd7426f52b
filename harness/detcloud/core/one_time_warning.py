"""A warning in a trial's log that is printed once, even if the cause recurs."""

from __future__ import annotations

import sys


class OneTimeWarning:
    """Prints the first text to stderr and discards later texts."""

    def __init__(self) -> None:
        self._was_printed = False

    def show(self, text: str) -> None:
        """Print the text to stderr, unless this object has printed a text before."""
        if not self._was_printed:
            self._was_printed = True
            print(f"[detcloud] {text}; this is said once", file=sys.stderr, flush=True)
