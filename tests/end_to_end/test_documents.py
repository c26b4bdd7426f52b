"""The documents are correct: documented commands work, and print the documented output."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.conftest import require_installed
from tests.end_to_end.documents import Command, play, steps
from tests.end_to_end.laptop import DETCLOUD, DIGITS, ROOT, Laptop

pytestmark = pytest.mark.end_to_end

DOCS = ROOT / "docs"
HOME = "/home/ada/.detcloud"
PLAYED = (
    "commands.md",
    "data.md",
    "job-queue.md",
    "monitoring.md",
    "quickstart.md",
    "resource-pools.md",
    "simulate.md",
    "spot.md",
)
# Documents with several complete searches, which take minutes together.
PLAYED_NIGHTLY = (
    "api.md",
    "cost.md",
    "custom-search.md",
    "manage.md",
    "training-api.md",
    "tutorials/preemption.md",
    "tutorials/pytorch-model.md",
    "tutorials/search.md",
    "tutorials/team-cluster.md",
)


@pytest.mark.parametrize(
    "name",
    [*PLAYED, *(pytest.param(name, marks=pytest.mark.nightly) for name in PLAYED_NIGHTLY)],
)
def test_commands_of_a_document_print_the_documented_output(tmp_path: Path, name: str) -> None:
    require_installed("sklearn")
    shutil.copytree(DIGITS, tmp_path / "ada" / "examples" / "digits")
    path = _path_with_commands(tmp_path / "bin")
    laptop = Laptop(tmp_path / "ada" / ".detcloud", LOGNAME="ada", PATH=path)
    try:
        play(DOCS / name, laptop, HOME)
    finally:
        assert laptop.end() == []


def test_every_document_with_commands_is_tested() -> None:
    def has_commands(document: Path) -> bool:
        return any(isinstance(step, Command) for step in steps(document))

    documents = (*DOCS.glob("*.md"), *DOCS.glob("tutorials/*.md"))
    with_commands = {path.relative_to(DOCS).as_posix() for path in documents if has_commands(path)}
    assert with_commands == {*PLAYED, *PLAYED_NIGHTLY}


def _path_with_commands(folder: Path) -> str:
    """Return a PATH with `detcloud` and this Python."""
    folder.mkdir()
    script = folder / "detcloud"
    script.write_text(f'#!/bin/sh\nexec {" ".join(DETCLOUD)} "$@"\n')
    script.chmod(0o755)
    return os.pathsep.join((str(folder), str(Path(sys.executable).parent), os.environ["PATH"]))
