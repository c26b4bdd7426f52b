"""Configurations of notebooks: those of commands, with the program given and a limit on idling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal

from pydantic import ValidationError

from control_plane.config.durations import PositiveDuration
from control_plane.config.eras import Tree
from control_plane.config.section import Section, findings_of
from control_plane.findings import Finding

PROGRAM: Final = ("python", "-m", "detcloud.launch.notebook")
IDLE_FIELDS: Final = ("idle_timeout", "notebook_idle_type")


class IdleSettings(Section):
    """When a notebook that nobody uses ends."""

    idle_timeout: PositiveDuration | None = None
    """For how long it may be idle; None: for ever."""
    notebook_idle_type: Literal["kernels_or_terminals", "kernel_connections", "activity"] = (
        "kernels_or_terminals"
    )
    """It is idle without kernels and terminals; or without kernels that a browser is connected to;
    or without kernels that compute.
    """


def notebook_layer(tree: Tree) -> tuple[Tree, Tree, list[Finding]]:
    """Divide a layer into what a command has too and the settings of idling; with what a notebook
    cannot have.
    """
    rest = {name: value for name, value in tree.items() if name not in IDLE_FIELDS}
    idle = {name: value for name, value in tree.items() if name in IDLE_FIELDS}
    return rest, idle, list(_find_program(tree))


def notebook_program(layers: Sequence[Tree]) -> tuple[list[str], list[Finding]]:
    """Return the program of a notebook whose settings of idling are in `layers`, the user's first,
    and what is wrong with them.
    """
    merged = {name: value for layer in reversed(layers) for name, value in layer.items()}
    try:
        idle = IdleSettings.model_validate(merged)
    except ValidationError as error:
        return list(PROGRAM), findings_of(error)
    if idle.idle_timeout is None:
        return list(PROGRAM), []
    seconds = str(max(1, idle.idle_timeout // 1_000))
    options = ["--idle-timeout", seconds, "--idle-type", idle.notebook_idle_type]
    return [*PROGRAM, *options], []


def _find_program(tree: Tree) -> Iterator[Finding]:
    if tree.get("entrypoint") is not None:
        hint = "remove it: a notebook runs JupyterLab"
        yield Finding(("entrypoint",), "is for experiments and commands", hint)
