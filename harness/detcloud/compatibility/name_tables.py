"""The structure of the tables in `names.py`, and functions for writing them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Module:
    """The names of a module of Determined."""

    offered: Mapping[str, str] = field(default_factory=dict)
    """Places in detcloud by name, as `module:attribute`, or `module` for a whole module."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """For each unsupported name, a sentence with the replacement."""
    program: str | None = None
    """The module of detcloud that `python -m` runs, or None."""
    otherwise: str | None = None
    """The sentence for all other names. None: other names are an AttributeError."""


def same_names(place: str, names: str) -> dict[str, str]:
    return {name: f"{place}:{name}" for name in names.split()}


def all_missing(names: str, sentence: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), sentence)
