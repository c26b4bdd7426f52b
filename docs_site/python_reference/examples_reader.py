"""Examples: cells of scripts that tests run.

A line `# %% NAME, NAME` begins a cell, the example of these names. Several such lines may precede
the code. `# %% setup` begins the code that a page shows before all examples. A cell without a name
is not shown: the code replaces steps of a reader, for example the end of a search.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from docs_site.sources import REPOSITORY

FOLDER = REPOSITORY / "docs" / "python" / "examples"
SETUP = "setup"
_CELL = re.compile(r"^# %%(.*)\n", re.MULTILINE)


@dataclass
class Examples:
    """The examples of a page."""

    setup: str = ""
    cells: dict[str, list[str]] = field(default_factory=dict)
    """The examples of each name, such as `Client.jobs`."""


def read_examples(*scripts: str) -> Examples:
    """Return the examples of scripts in docs/python/examples, in the order of the scripts."""
    found = Examples()
    for script in scripts:
        add_cells((FOLDER / script).read_text(encoding="utf-8"), found)
    return found


def add_cells(text: str, found: Examples) -> None:
    """Add the cells of a script to `found`."""
    _, *parts = _CELL.split(text)
    names = list[str]()
    for line, code in zip(parts[::2], parts[1::2], strict=True):
        names += filter(None, map(str.strip, line.split(",")))
        code = code.strip("\n")
        if not code:
            continue
        for name in names:
            if name == SETUP:
                found.setup = f"{found.setup}\n{code}".strip("\n")
            else:
                found.cells.setdefault(name, []).append(code)
        names = []
