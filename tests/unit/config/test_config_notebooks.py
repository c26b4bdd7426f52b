"""Configurations of notebooks: the given program, and the timeout of idle notebooks."""

from __future__ import annotations

import pytest

from control_plane.actors.records import JobKind
from control_plane.config.check import check_config
from control_plane.config.notebook import PROGRAM
from tests.unit.config.samples import find_problems

NOTEBOOK = JobKind.NOTEBOOK


def program(text: str, *overrides: str, template: str | None = None) -> tuple[str, ...]:
    config = check_config(text, kind=NOTEBOOK, overrides=overrides, template=template)
    assert isinstance(config.entrypoint, tuple)
    return config.entrypoint


def idle_program(seconds: int, kind: str = "kernels_or_terminals") -> tuple[str, ...]:
    return (*PROGRAM, "--idle-timeout", str(seconds), "--idle-type", kind)


def test_notebook_without_settings_has_no_idle_timeout() -> None:
    assert program("{}") == PROGRAM


@pytest.mark.parametrize(
    ("timeout", "seconds"), [("90", 90), ("2h", 7_200), ("1h30m", 5_400), ("500ms", 1)]
)
def test_idle_timeout_is_a_duration_or_seconds(timeout: str, seconds: int) -> None:
    assert program("{}", f"idle_timeout={timeout}") == idle_program(seconds)


def test_user_idle_type_overrides_the_template() -> None:
    template = "idle_timeout: 60\nnotebook_idle_type: activity\n"
    assert program("{}", template=template) == idle_program(60, "activity")
    own = "notebook_idle_type: kernel_connections\n"
    assert program(own, template=template) == idle_program(60, "kernel_connections")


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("idle_timeout: soon\n", "idle_timeout"),
        ("idle_timeout: 0\n", "idle_timeout"),
        ("notebook_idle_type: never\n", "notebook_idle_type"),
        ("entrypoint: [bash]\n", "entrypoint"),
        ("max_restarts: 1\n", "max_restarts"),
    ],
)
def test_notebooks_reject_invalid_fields_with_the_line(text: str, path: str) -> None:
    [problem] = find_problems(f"name: mine\n{text}", kind=NOTEBOOK)
    assert (problem.path, problem.line) == (path, 2)


def test_command_has_no_idle_type() -> None:
    problems = find_problems(
        "entrypoint: [a]\nnotebook_idle_type: activity\n", kind=JobKind.COMMAND
    )
    assert [problem.path for problem in problems] == ["notebook_idle_type"]
