"""Runs the scripts of docs/python/examples, whose cells are the examples of the documents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).resolve().parents[1] / "docs" / "python" / "examples"


def run_examples(*scripts: str) -> dict[str, Any]:
    """Run scripts in order, each in a namespace of its own, and return the last namespace.

    The scripts write files to the working folder. Errors of a script are raised.
    """
    names: dict[str, Any] = {}
    for script in scripts:
        path = EXAMPLES / script
        names = {"__name__": "examples"}
        exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), names)
    return names
