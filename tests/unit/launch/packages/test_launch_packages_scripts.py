"""Console scripts in the overlay of their caller."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from detcloud.launch.packages.scripts import INTERPRETER_VARIABLE, write_parent_scripts

CODE = "import sys\nprint(sys.executable, *sys.argv[1:])\n"


def scripts_of(tmp_path: Path, head: str) -> Path:
    """Write a script with the first lines `head`, and return the folder of the rewritten copy."""
    programs = tmp_path / "a parent" / "bin"
    programs.mkdir(parents=True)
    (programs / "python3").symlink_to(sys.executable)
    (programs / "tool").write_text(head.format(python=programs / "python3") + CODE)
    (programs / "tool").chmod(0o755)
    (programs / "other").write_text("#!/bin/sh\necho other\n")
    folder = tmp_path / "scripts" / "1"
    write_parent_scripts(programs, folder)
    return folder


@pytest.mark.parametrize(
    "head",
    [
        "#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n",
        "#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n# -*- coding: utf-8 -*-\n",
    ],
)
def test_scripts_run_with_the_interpreter_of_their_caller(tmp_path: Path, head: str) -> None:
    folder = scripts_of(tmp_path, head)
    own = tmp_path / "own"
    own.symlink_to(sys.executable)
    variables = {**os.environ, INTERPRETER_VARIABLE: str(own), "my-var": "kept"}
    called = [str(folder / "tool"), "a b", "$c"]
    done = subprocess.run(called, env=variables, capture_output=True, text=True, check=True)
    assert done.stdout == f"{own} a b $c\n"
    without = {k: v for k, v in variables.items() if k != INTERPRETER_VARIABLE}
    done = subprocess.run(called, env=without, capture_output=True, text=True, check=True)
    assert done.stdout == f"{tmp_path}/a parent/bin/python3 a b $c\n"


def test_options_of_the_first_line_are_kept(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "python3").symlink_to(sys.executable)
    (programs / "tool").write_text(
        f"#!{programs}/python3 -I\nimport sys\nprint(sys.flags.isolated)\n"
    )
    write_parent_scripts(programs, tmp_path / "scripts")
    done = subprocess.run([tmp_path / "scripts/tool"], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"


def test_only_scripts_of_the_parent_and_pip_are_written(tmp_path: Path) -> None:
    folder = scripts_of(tmp_path, "#!{python}\n")
    # The blank in the path makes the first line no script of this interpreter.
    assert sorted(path.name for path in folder.iterdir()) == ["pip", "pip3"]


def test_a_second_launch_reuses_the_scripts(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for _ in range(2):
        write_parent_scripts(programs, tmp_path / "scripts" / "1")
    assert [path.name for path in (tmp_path / "scripts").iterdir()] == ["1"]
