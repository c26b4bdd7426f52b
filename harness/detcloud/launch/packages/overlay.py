"""A virtual environment of a trial over the Python environment that runs the agent.

Installers write into the trial's own folder, so no trial changes the agent's environment. Python
searches the trial's folder first, then the layer, then the parent environment.

    OVERLAY/bin/python        a link to the base interpreter
    OVERLAY/pyvenv.cfg        makes OVERLAY the interpreter's prefix
    OVERLAY/lib/pythonX.Y/site-packages
    OVERLAY/packages          a link to the layer of the declared packages
    OVERLAY/harness/detcloud  a link to this package, only if it is one of the parent's packages
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from detcloud.launch.packages.scripts import INTERPRETER_VARIABLE, write_parent_scripts

DECLARED_LAYER = "packages"
HARNESS_FOLDER = "harness"
PATH_FILE = "detcloud-layers.pth"
HOOK_VARIABLE = "DETCLOUD_HOOK"
"""The variable that is set for programs of a running startup-hook.sh."""
# Neither "true" nor "false": `site` adds the base interpreter's packages only for "true", and pip
# refuses `--user` only for "false".
SYSTEM_PACKAGES = "parent"


@dataclass(frozen=True, slots=True)
class ParentPython:
    """The interpreter below an overlay."""

    executable: str
    """The path by which the parent environment's interpreter is started."""
    base: str
    """The path of the interpreter outside of all virtual environments."""
    version: str
    """The first two numbers of the version, such as 3.11."""
    site_folders: tuple[str, ...]
    """The folders of installed packages, in the order of the search path."""

    @property
    def identity(self) -> str:
        """A text that changes when the interpreter or the list of installed packages changes.

        The text is equal on machines with the same image.
        """
        packages = [_package_names(folder) for folder in self.site_folders]
        return repr((self.executable, self.base, sys.version, self.site_folders, packages))


def current_python() -> ParentPython:
    """Return the interpreter that runs this process, with the existing folders of packages.

    Folders of packages for a single user are left out.
    """
    import site

    base = getattr(sys, "_base_executable", None) or sys.executable
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    folders = tuple(folder for folder in site.getsitepackages() if Path(folder).is_dir())
    return ParentPython(sys.executable, base, version, folders)


def make_overlay(folder: Path, parent: ParentPython, layer: Path | None, harness: Path) -> None:
    """Create an overlay, a trial's virtual environment over `parent`, without packages.

    An existing overlay keeps its packages and its layer.

    Args:
        layer: the layer of declared packages, or None.
        harness: the folder that contains this `detcloud` package. The package is linked into the
            overlay only if the folder is one of the parent's site folders.

    Raises OSError if the folder cannot be written.
    """
    site_packages = site_packages_folder(folder, parent.version)
    site_packages.mkdir(mode=0o700, parents=True, exist_ok=True)
    programs = folder / "bin"
    programs.mkdir(mode=0o700, exist_ok=True)
    _link(programs / "python", Path(parent.base))
    for name in ("python3", f"python{parent.version}"):
        _link(programs / name, Path("python"))
    if layer is not None:
        _link(folder / DECLARED_LAYER, layer)
    if str(harness) in parent.site_folders:
        (folder / HARNESS_FOLDER).mkdir(mode=0o700, exist_ok=True)
        _link(folder / HARNESS_FOLDER / "detcloud", harness / "detcloud")
    (site_packages / PATH_FILE).write_text(_path_lines(folder, parent), encoding="utf-8")
    (folder / "pyvenv.cfg").write_text(
        f"home = {Path(parent.base).parent}\n"
        f"include-system-site-packages = {SYSTEM_PACKAGES}\n"
        f"version = {sys.version.split()[0]}\n",
        encoding="utf-8",
    )


def overlay_variables(folder: Path, path: str, scripts: Path) -> dict[str, str]:
    """Return the environment variables of programs in `folder`, a trial's virtual environment.

    PATH lists the programs of the overlay, of the declared layer and of `scripts`, then `path`.
    VIRTUAL_ENV and PYTHONUSERBASE are the folder. INTERPRETER_VARIABLE is the overlay's
    interpreter.

    Args:
        path: the PATH of the parent environment.
        scripts: the folder with the parent environment's scripts, from `parent_scripts`.
    """
    folders = [folder / "bin", folder / DECLARED_LAYER / "bin", scripts]
    return {
        "PATH": os.pathsep.join([*map(str, folders), path]),
        "VIRTUAL_ENV": str(folder),
        INTERPRETER_VARIABLE: str(overlay_python(folder)),
        # `pip install --user` installs into the overlay, too.
        "PYTHONUSERBASE": str(folder),
    }


def jupyter_variables(parent: ParentPython) -> dict[str, str]:
    """Return the variables by which Jupyter in an overlay finds the parent's files.

    The files are the page, the kernels and the settings, for which Jupyter would otherwise search
    `sys.prefix`. Omit variables whose folder does not exist.
    """
    prefix = Path(parent.executable).parents[1]
    places = {
        "JUPYTER_PATH": prefix / "share/jupyter",
        "JUPYTER_CONFIG_PATH": prefix / "etc/jupyter",
        "JUPYTERLAB_DIR": prefix / "share/jupyter/lab",
    }
    return {name: str(place) for name, place in places.items() if place.is_dir()}


def harness_path(folder: Path, harness: str) -> str:
    """Return the entry of PYTHONPATH by which programs in an overlay import this package.

    If `folder`, the overlay of a trial, has a link to this package, return the link's folder. The
    parent's packages then do not precede the packages of the overlay. Otherwise return `harness`.
    """
    own = folder / HARNESS_FOLDER
    return str(own) if own.is_dir() else harness


def overlay_python(folder: Path) -> Path:
    """Return the path of the interpreter of an overlay, a trial's virtual environment."""
    return folder / "bin" / "python"


def site_packages_folder(folder: Path, version: str) -> Path:
    """Return the folder of packages in an overlay, a virtual environment, or in a layer.

    `version` is like 3.11.
    """
    return folder / "lib" / f"python{version}" / "site-packages"


def parent_scripts(cache: Path, parent: ParentPython) -> Path:
    """Return a folder in `cache` with the parent's Python scripts, for use in any overlay.

    A script runs in the overlay, the trial's virtual environment, of its caller. A `pip` is added
    if the parent has none. Write the folder unless a folder exists for the present modification
    time of the parent's programs; keep older folders. Raises OSError if the folder cannot be
    written.
    """
    programs = Path(parent.executable).parent
    folder = cache / f"{_modified_ns(str(programs)):x}"
    if not folder.is_dir():
        write_parent_scripts(programs, folder)
    return folder


def _path_lines(folder: Path, parent: ParentPython) -> str:
    """Return the lines by which `site` adds the layer and the parent's folders to the path.

    The last line skips pip commands of a hook that an earlier run has executed.
    """
    layer = str(site_packages_folder(folder / DECLARED_LAYER, parent.version))
    lines = [
        f"import os, site; os.path.isdir({place!r}) and site.addsitedir({place!r})\n"
        for place in (layer, *parent.site_folders)
    ]
    module = "detcloud.launch.packages.hook_pip"
    skip = f"os.environ.get({HOOK_VARIABLE!r}) and __import__({module!r}, fromlist=['x']).main()"
    return "".join([*lines, f"import os; {skip}\n"])


def _link(link: Path, target: Path) -> None:
    """Create the link `link` to `target`, or keep an existing link. Raises OSError."""
    if not link.is_symlink():
        link.symlink_to(target)


def _package_names(folder: str) -> list[str]:
    """Return the sorted names of the folders in which installers record packages and versions.

    Return an empty list if the folder cannot be read.
    """
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries]
    except OSError:
        return []
    return sorted(name for name in names if name.endswith((".dist-info", ".egg-info")))


def _modified_ns(folder: str) -> int:
    """Return the modification time in nanoseconds, or 0 if the folder is missing or unreadable."""
    try:
        return os.stat(folder).st_mtime_ns  # noqa: PTH116
    except OSError:
        return 0
