"""Configurations of shells: like commands, but with a given program."""

from __future__ import annotations

import pytest

from control_plane.actors.records import JobKind
from control_plane.config.check import check_config
from control_plane.config.shell import SHELL_PROGRAM
from tests.unit.config.samples import find_problems

SHELL = JobKind.SHELL


def test_shell_needs_no_settings_and_accepts_resources() -> None:
    assert check_config("{}", kind=SHELL).entrypoint == SHELL_PROGRAM
    config = check_config("resources: {slots: 2}\n", kind=SHELL)
    assert (config.entrypoint, config.resources.slots_per_trial) == (SHELL_PROGRAM, 2)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("entrypoint: [bash]\n", "entrypoint"),
        ("max_restarts: 1\n", "max_restarts"),
        ("notebook_idle_type: activity\n", "notebook_idle_type"),
    ],
)
def test_shells_reject_other_fields_with_the_line(text: str, path: str) -> None:
    [problem] = find_problems(f"name: mine\n{text}", kind=SHELL)
    assert (problem.path, problem.line) == (path, 2)


def test_shells_reject_an_entrypoint_of_a_template() -> None:
    [problem] = find_problems("{}", kind=SHELL, template="entrypoint: [bash]\n")
    assert problem.path == "entrypoint"
