"""The check of an entrypoint against the files of the model code."""

from __future__ import annotations

from typing import Any

import pytest

from control_plane.config.entrypoint_files import find_missing_code
from control_plane.config.eras import Era
from control_plane.config.experiment import validate_config

FILES = {"model_def.py", "train.py", "pkg/__init__.py", "pkg/trial.py", "tools/run.py"}


def missing(entrypoint: object, files: set[str] = FILES, **fields: Any) -> bool | None:
    """Return whether missing code is certain; None if no missing code is found."""
    tree = {"searcher": {"name": "single", "metric": "x"}, "entrypoint": entrypoint, **fields}
    missing_code = find_missing_code(validate_config(tree, Era.LENGTH), files)
    return None if missing_code is None else missing_code.is_certain


@pytest.mark.parametrize(
    "entrypoint",
    [
        "model_def:Trial",
        "pkg.trial:Trial",
        "pkg:Trial",
        "tools.run:Trial",
        "python3 train.py --epochs 3",
        "python3 -u ./tools/run.py",
        ["python3", "train.py", "$HOME"],
        "python3 -m detcloud.launch.torch_distributed --trial model_def:Trial",
        # Programs other than Python, and lines for a shell, are not checked.
        "cd tools && python3 gone.py",
        "python3 $SCRIPT.py",
        "bash gone.py",
        "python3 /opt/gone.py",
        "python3 ../gone.py",
        "python3 -c 'import gone'",
        "python3 -m gone",
    ],
)
def test_entrypoints_with_existing_or_unknown_files_are_accepted(entrypoint: object) -> None:
    assert missing(entrypoint) is None


@pytest.mark.parametrize(
    "entrypoint",
    ["python3 gone.py", ["python", "-u", "tools/gone.py"], "pkg.gone:Trial", "tools.gone:Trial"],
)
def test_missing_file_in_an_existing_folder_is_certain(entrypoint: object) -> None:
    assert missing(entrypoint) is True
    hook = FILES | {"startup-hook.sh"}
    assert missing(entrypoint, hook) is False
    mounts = [{"host_path": "/data", "container_path": "data"}]
    assert missing(entrypoint, bind_mounts=mounts) is False


@pytest.mark.parametrize(
    "entrypoint",
    [
        "gone:Trial",
        "gone.deep:Trial",
        "python3 -m detcloud.launch.torch_distributed --trial gone:Trial",
    ],
)
def test_missing_module_is_uncertain_because_of_installed_packages(entrypoint: object) -> None:
    assert missing(entrypoint) is False
