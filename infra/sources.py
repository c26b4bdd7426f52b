"""The sources and packages of functions, from a checkout or an installation of detcloud.

A cloud's bundle packs the sources and packages for the cloud's runtime.
"""

import re
import shutil
import tomllib
from importlib import metadata
from pathlib import Path

import detcloud
from detcloud.shared.runbook import FOLDER

# The root of a checkout, or the folder of the server's packages in an installation.
REPOSITORY = Path(__file__).resolve().parent.parent
SOURCES = (
    *(REPOSITORY / name for name in ("control_plane", "provisioner", "lambdas", "relay", "images")),
    Path(detcloud.__file__).parent,
)
# The API shows the pages of the runbook.
RUNBOOK = REPOSITORY / FOLDER
# Parts of the sources that no function imports.
LEFT_OUT = (
    "lambdas/dump.py",
    "detcloud/_server",
)


def copy_sources(content: Path) -> None:
    """Copy the source folders of functions, and the runbook, into the folder `content`.

    Create `content` if necessary. The files and folders in LEFT_OUT and `__pycache__` are left out.
    Raise FileExistsError if `content` already has one of the source folders, and another OSError if
    a file cannot be copied. Files that were copied before an error stay.
    """
    for source in SOURCES:

        def names_to_ignore(folder: str, names: list[str], source: Path = source) -> set[str]:
            place = Path(folder).relative_to(source.parent)
            left_out = {name for name in names if str(place / name) in LEFT_OUT}
            return left_out | {name for name in names if name == "__pycache__"}

        shutil.copytree(source, content / source.name, ignore=names_to_ignore)
    shutil.copytree(RUNBOOK, content / FOLDER)


def extra_packages(*names: str, repository: Path = REPOSITORY) -> list[str]:
    """Return the package requirements of detcloud's extras `names`.

    Read `pyproject.toml` if `repository` is a checkout, and otherwise the metadata of the
    installation. An unknown extra raises KeyError in a checkout, and has no packages in an
    installation.
    """
    project = repository / "pyproject.toml"
    if project.exists():
        extras = tomllib.loads(project.read_text())["project"]["optional-dependencies"]
        return [package for name in names for package in extras[name]]
    mark = re.compile(rf"(.*?); *extra *== *['\"](?:{'|'.join(names)})['\"]")
    found = [mark.fullmatch(line) for line in metadata.requires("detcloud") or ()]
    return [match[1] for match in found if match]
