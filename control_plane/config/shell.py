"""Configurations of shells: those of commands, with the program given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from control_plane.config.eras import Tree
from control_plane.findings import Finding

SHELL_PROGRAM: Final = ("python", "-m", "detcloud.launch.shell")


def find_program(tree: Tree) -> Iterator[Finding]:
    """Yield what is wrong with a layer that names a program."""
    if tree.get("entrypoint") is not None:
        hint = "remove it: `detcloud shell open ID PROGRAM` runs a program in a shell"
        yield Finding(("entrypoint",), "is for experiments and commands", hint)
