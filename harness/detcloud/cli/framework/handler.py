"""The code of a command: what its module registers under the command's name in `HANDLERS`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from typing import NamedTuple


class Handler(NamedTuple):
    """Two functions: one declares a command's arguments, one runs it and returns an exit code."""

    add_arguments: Callable[[ArgumentParser], None]
    run: Callable[[Namespace], int]


Handlers = Mapping[str, Handler]
"""Handlers by the name of the command, such as `experiment list`."""
