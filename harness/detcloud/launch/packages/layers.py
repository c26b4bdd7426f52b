"""Layers: folders of installed packages that several runs of trials share.

    CACHE/KEY                 a link to the layer's folder; exists when the layer is complete
    CACHE/build-RANDOM        the layer's folder, with bin/ and lib/pythonX.Y/site-packages

A complete layer never changes. Installers do not change layers, because layers are outside of every
overlay.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path

from detcloud.launch.packages.overlay import PATH_FILE, site_packages_folder
from detcloud.launch.packages.scripts import copy_scripts
from detcloud.shared.files import delete_tree

BUILD_PREFIX = "build-"
COMMANDS_FILE = "hook-commands.jsonl"
"""The file with the pip commands of a hook whose packages are in the overlay or layer."""


def find_layer(cache: Path, key: str) -> Path | None:
    """Return the folder of the complete layer with this key, with the link CACHE/KEY resolved.

    Return None without a complete layer. The layer's time of use is not changed.
    """
    try:
        return (cache / key).resolve(strict=True)
    except OSError:
        return None


def store_layer(overlay: Path, version: str, cache: Path, key: str) -> bool:
    """Create a layer of the packages in an overlay, a trial's virtual environment; return True.

    Return False if the overlay has no packages or the layer exists. Files are hard links, so that
    the overlay keeps the packages. Editable packages are omitted, because their code belongs to one
    run.

    Raises OSError if the layer cannot be written; the incomplete layer is deleted.
    """
    source = site_packages_folder(overlay, version)
    if find_layer(cache, key) is not None or not _has_packages(source):
        return False
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    build = Path(tempfile.mkdtemp(prefix=BUILD_PREFIX, dir=cache))
    try:
        target = site_packages_folder(build, version)
        target.mkdir(parents=True)
        omitted = {PATH_FILE, "__pycache__", *_editable_entries(source)}
        for entry in source.iterdir():
            if entry.name not in omitted:
                _link_tree(entry, target / entry.name)
        (build / "bin").mkdir()
        _copy_programs(overlay / "bin", build / "bin")
        if (overlay / COMMANDS_FILE).is_file():
            _link_tree(overlay / COMMANDS_FILE, build / COMMANDS_FILE)
        (cache / key).symlink_to(build.name)
    except FileExistsError:
        # Another run stored the same layer.
        delete_tree(build)
        return False
    except OSError:
        delete_tree(build)
        raise
    return True


def fill_overlay(overlay: Path, version: str, layer: Path) -> None:
    """Link the packages of a layer into a new overlay, a trial's virtual environment.

    The packages then count as installed. Files are hard links: installers replace files instead of
    writing into them. The layer's COMMANDS_FILE is linked too. Raises OSError if the layer cannot
    be read or the overlay cannot be written, also if a file of a package exists there. A part of
    the files may then be in the overlay.
    """
    target = site_packages_folder(overlay, version)
    for entry in site_packages_folder(layer, version).iterdir():
        _link_tree(entry, target / entry.name)
    for entry in (layer / "bin").iterdir():
        _link_tree(entry, overlay / "bin" / entry.name)
    if (layer / COMMANDS_FILE).is_file():
        _link_tree(layer / COMMANDS_FILE, overlay / COMMANDS_FILE)


def finish_layer(build: Path, cache: Path, key: str) -> None:
    """Make the installer's overlay `build`, a folder in `cache`, the layer with this key.

    An overlay is a virtual environment. Delete its interpreter and settings, and rewrite its
    scripts to run in any overlay. Then create the link CACHE/KEY to `build`, which keeps its name.

    Raises FileExistsError if the link exists, and OSError if a file cannot be written. `build` is
    then changed in part, and no link to it exists.
    """
    programs = build / "bin"
    drafts = build / "bin.new"
    drafts.mkdir()
    _copy_programs(programs, drafts)
    delete_tree(programs)
    drafts.rename(programs)
    for path in (build / "pyvenv.cfg", *build.glob(f"lib/*/*/{PATH_FILE}")):
        path.unlink()
    (cache / key).symlink_to(build.name)


def _has_packages(site_packages: Path) -> bool:
    """Return whether a folder of packages contains an installed package."""
    return any(site_packages.glob("*.dist-info"))


def _editable_entries(site_packages: Path) -> set[str]:
    """Return the names of the entries in `site-packages` that editable installations create.

    The result always contains `easy-install.pth`, even if the file does not exist. A package whose
    record of the origin or of the files cannot be read is skipped.
    """
    names = {entry.name for entry in site_packages.glob("__editable__*")}
    names |= {entry.name for entry in site_packages.glob("*.egg-link")} | {"easy-install.pth"}
    for record in site_packages.glob("*.dist-info/direct_url.json"):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            origin = json.loads(record.read_bytes())
            if origin.get("dir_info", {}).get("editable"):
                names |= {record.parent.name, *_recorded_entries(record.parent / "RECORD")}
    return names


def _recorded_entries(record: Path) -> set[str]:
    """Return the top entries of `site-packages` that a package's RECORD lists.

    Raises OSError if the file cannot be read.
    """
    lines = record.read_text(encoding="utf-8", errors="replace").splitlines()
    tops = {line.partition(",")[0].partition("/")[0] for line in lines}
    return tops - {"", ".", "..", "__pycache__"}


def _copy_programs(programs: Path, folder: Path) -> None:
    """Copy the programs that installers have added to an overlay's `bin` into `folder`.

    Python scripts are rewritten to run in any overlay, a trial's virtual environment. Programs that
    are no Python scripts become hard links. The interpreter is left out. Raises OSError if
    `programs` cannot be read or a program cannot be written.
    """
    copy_scripts(programs, folder)
    for entry in programs.iterdir():
        is_interpreter = entry.is_symlink() or entry.name.startswith("python")
        if not is_interpreter and entry.is_file() and not (folder / entry.name).exists():
            _link_tree(entry, folder / entry.name)


def _link_tree(source: Path, target: Path) -> None:
    """Recreate a file, link or folder at `target`, with hard links to the files.

    Raises OSError if `source` is missing, if `target` exists, cannot be written or is on a
    different file system. A part may then remain at `target`.
    """
    if source.is_symlink():
        target.symlink_to(source.readlink())
    elif source.is_dir():
        target.mkdir()
        with os.scandir(source) as entries:
            for entry in entries:
                _link_tree(source / entry.name, target / entry.name)
    else:
        target.hardlink_to(source)
