"""Configurations of notebooks: commands with a fixed program and idle settings."""

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
    """The settings by which a notebook that nobody uses ends."""

    idle_timeout: PositiveDuration | None = None
    """The time after which an idle notebook ends. If absent, a notebook does not end by itself."""
    notebook_idle_type: Literal["kernels_or_terminals", "kernel_connections", "activity"] = (
        "kernels_or_terminals"
    )
    """The condition for idleness. `kernels_or_terminals`: no kernel and no terminal runs.
    `kernel_connections`: no browser is connected to a kernel. `activity`: no kernel computes.
    """


def notebook_layer(tree: Tree) -> tuple[Tree, Tree, list[Finding]]:
    """Split a layer of a notebook's configuration.

    Return the fields that a command may have, the idle settings, and the findings: a notebook
    cannot have an entrypoint.
    """
    rest = {name: value for name, value in tree.items() if name not in IDLE_FIELDS}
    idle = {name: value for name, value in tree.items() if name in IDLE_FIELDS}
    return rest, idle, list(_find_program(tree))


def notebook_program(layers: Sequence[Tree]) -> tuple[list[str], list[Finding]]:
    """Return the words of a notebook's program with options, and the findings.

    Without `idle_timeout`, the program has no options. The option has the timeout in whole seconds,
    at least 1. If idle settings are invalid, return the program without options and a finding for
    each invalid setting.

    Args:
        layers: the idle settings of the layers, the user's layer first.
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
