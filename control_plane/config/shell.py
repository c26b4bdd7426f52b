"""Configurations of shells: commands with a fixed program."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from control_plane.config.eras import Tree
from control_plane.findings import Finding

SHELL_PROGRAM: Final = ("python", "-m", "detcloud.launch.shell")


def find_program(tree: Tree) -> Iterator[Finding]:
    """Yield a finding if a layer of a shell's configuration has an entrypoint."""
    if tree.get("entrypoint") is not None:
        hint = "remove it: `detcloud shell open ID PROGRAM` runs a program in a shell"
        yield Finding(("entrypoint",), "is for experiments and commands", hint)
