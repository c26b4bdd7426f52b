"""An overlay: the interpreter and the variables of one trial."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

from detcloud.launch.packages.overlay import (
    current_python,
    harness_path,
    jupyter_variables,
    make_overlay,
    overlay_python,
    overlay_variables,
    site_packages_folder,
)

HARNESS = Path(__file__).parents[4] / "harness"


def run_python(folder: Path, code: str) -> list[str]:
    """The lines that code prints in an overlay."""
    done = subprocess.run(
        [overlay_python(folder), "-c", code], capture_output=True, text=True, check=True, env={}
    )
    assert not done.stderr
    return done.stdout.splitlines()


def test_python_path_is_overlay_layer_and_parent(tmp_path: Path) -> None:
    parent, layer, folder = current_python(), tmp_path / "layer", tmp_path / "own"
    for place in (layer, tmp_path / "empty"):
        site_packages_folder(place, parent.version).mkdir(parents=True)
    make_overlay(folder, parent, layer, HARNESS)
    prefix, *path = run_python(folder, "import sys; print(sys.prefix, *sys.path, sep='\\n')")
    assert prefix == str(folder)
    ours = [site_packages_folder(folder, parent.version)]
    ours.append(site_packages_folder(folder / "packages", parent.version))
    expected = [*map(str, ours), *parent.site_folders]
    assert [entry for entry in path if entry in expected] == expected
    # Made again, it keeps what it has.
    make_overlay(folder, parent, tmp_path / "empty", HARNESS)
    assert (folder / "packages").resolve() == layer


def test_harness_path_contains_only_detcloud(tmp_path: Path) -> None:
    installed = tmp_path / "site-packages"
    (installed / "detcloud").mkdir(parents=True)
    parent = replace(current_python(), site_folders=(str(installed),))
    make_overlay(tmp_path / "own", parent, None, installed)
    path = Path(harness_path(tmp_path / "own", str(installed)))
    assert [entry.name for entry in path.iterdir()] == ["detcloud"]
    make_overlay(tmp_path / "other", current_python(), None, HARNESS)
    assert harness_path(tmp_path / "other", str(HARNESS)) == str(HARNESS)


def test_programs_of_the_overlay_come_first(tmp_path: Path) -> None:
    variables = overlay_variables(tmp_path, "/usr/bin", tmp_path / "scripts")
    assert variables["PATH"].split(":") == [
        f"{tmp_path}/bin",
        f"{tmp_path}/packages/bin",
        f"{tmp_path}/scripts",
        "/usr/bin",
    ]


def test_jupyter_finds_the_files_of_the_parent(tmp_path: Path) -> None:
    python = tmp_path / "bin/python"
    parent = replace(current_python(), executable=str(python))
    assert jupyter_variables(parent) == {}
    (tmp_path / "share/jupyter/lab").mkdir(parents=True)
    assert jupyter_variables(parent) == {
        "JUPYTER_PATH": f"{tmp_path}/share/jupyter",
        "JUPYTERLAB_DIR": f"{tmp_path}/share/jupyter/lab",
    }


def test_identity_of_a_parent_depends_on_packages_and_not_on_times(tmp_path: Path) -> None:
    site = tmp_path / "site"
    for number in range(300):
        (site / f"package{number}-1.0.dist-info").mkdir(parents=True)
    parent = replace(current_python(), site_folders=(str(site),))
    before = parent.identity
    (site / "module.py").write_text("")
    os.utime(site, (1, 1))
    assert parent.identity == before
    (site / "package1-1.0.dist-info").rename(site / "package1-1.1.dist-info")
    assert parent.identity != before
