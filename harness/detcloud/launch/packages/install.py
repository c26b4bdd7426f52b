"""Installs the packages that a configuration declares.

This is a stage before startup-hook.sh and the trial, run by the parent environment's interpreter:

    python -m detcloud.launch.packages.install OVERLAY

The command reads OVERLAY/request.json, finds or creates the layer of these packages, and creates
the overlay over the layer. One run installs; other runs with the same packages wait. The output of
the installer appears in the trial's log. The exit code is 0, or 1 if the packages cannot be
installed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detcloud.launch.packages.layers import BUILD_PREFIX, find_layer, finish_layer
from detcloud.launch.packages.overlay import (
    ParentPython,
    current_python,
    make_overlay,
    overlay_python,
    parent_scripts,
)
from detcloud.shared.files import delete_tree, read_json_object

REQUEST_FILE = "request.json"
SCRIPTS_FOLDER = "scripts"
REFUSED = 1
# Lines of a requirements file that name other files, so that the layer depends on the model code.
_LOCAL_LINE = re.compile(
    r"^\s*(?:-[rcef]|--(?:requirement|constraint|editable|find-links)|[./~]|file:)"
    r"|@\s*(?:file:|[./])|\.(?:whl|zip|tar\.gz)\s*$",
    re.MULTILINE,
)
_INSTALLER_VARIABLES = ("PIP_", "UV_")
# The folders of downloads do not change the packages. The agent sets them for each experiment.
_FOLDER_VARIABLES = ("PIP_CACHE_DIR", "UV_CACHE_DIR")
HARNESS = Path(__file__).resolve().parents[3]


class PackagesRefused(Exception):
    """Raised if the packages cannot be installed. The message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Request:
    """The content of request.json."""

    installer: str
    """`pip` or `uv`, the name of the configuration's field."""
    packages: list[str] | None
    """Lines of a requirements file, or None if `file` names one."""
    file: str
    """A file of the model code, "" if `packages` lists them."""
    cache: Path
    """The folder of the owner's layers."""
    code: Path
    """The folder of the model code."""
    code_sha256: str
    """The digest of the model code's archive."""
    image: str
    """The digest of the container's image, "" without a container."""
    links_scripts: bool
    """Whether the overlay gets its own copies of the parent's scripts."""

    @classmethod
    def read(cls, path: Path) -> Request:
        """Return the request in the file that the agent wrote.

        Raises KeyError if the file is missing, is no JSON object or lacks a folder. Raises
        TypeError for other missing or unknown fields.
        """
        fields: dict[str, Any] = read_json_object(path) or {}
        return cls(**{**fields, "cache": Path(fields["cache"]), "code": Path(fields["code"])})


def main(arguments: list[str]) -> int:
    """Install the packages of a request, and create the overlay in the folder `arguments[0]`.

    An overlay is a trial's virtual environment. The agent has written the request to `request.json`
    in this folder. A layer with the requested packages is reused from the cache, if present;
    otherwise pip or uv installs a new layer. The present time becomes the layer's time of use. With
    `links_scripts`, write the parent's scripts into SCRIPTS_FOLDER of the overlay. Print the
    outcome as a line of the trial's log. Return 0, or 1 after PackagesRefused or OSError. Raises
    KeyError or TypeError for an invalid request.
    """
    overlay = Path(arguments[0])
    request = Request.read(overlay / REQUEST_FILE)
    began = time.monotonic()
    try:
        lines = _requirement_lines(request)
        parent = current_python()
        key = _layer_key(request, lines, parent, os.environ)
        layer = find_layer(request.cache, key)
        has_installed = False
        if layer is None:
            layer, has_installed = _install_layer(request, lines, parent, key)
        make_overlay(overlay, parent, layer, HARNESS)
        if request.links_scripts:
            parent_scripts(overlay / SCRIPTS_FOLDER, parent)
        # The least recently used layers are deleted first.
        os.utime(layer)
    except PackagesRefused as refusal:
        print(f"[detcloud] environment.{request.installer}: {refusal}", flush=True)
        return REFUSED
    except OSError as error:
        print(f"[detcloud] environment.{request.installer}: {error}", flush=True)
        return REFUSED
    seconds = time.monotonic() - began
    how = f"installed in {seconds:.0f} s" if has_installed else "found on this machine"
    print(f"[detcloud] environment.{request.installer}: packages {how}", flush=True)
    return 0


def _requirement_lines(request: Request) -> str:
    """Return the content of the requirements: the listed packages, a line each, or else the file.

    Raises PackagesRefused if the file is missing or cannot be read.
    """
    if request.packages is not None:
        return "".join(f"{line}\n" for line in request.packages)
    path = request.code / request.file
    try:
        # Editors on Windows write a byte order mark.
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        text = f"the model directory has no file {request.file}; correct the name, or add the file"
        raise PackagesRefused(text) from None
    except (OSError, UnicodeDecodeError) as error:
        raise PackagesRefused(f"{request.file} cannot be read: {error}") from None


def declared_layer_key(request: Request, parent: ParentPython, variables: Mapping[str, str]) -> str:
    """Return the key of the layer with the requested packages.

    `variables` are the environment variables of the trial. Return "" if the requirements file
    cannot be read.
    """
    try:
        lines = _requirement_lines(request)
    except PackagesRefused:
        # The installing stage prints this error in the trial's log.
        return ""
    return _layer_key(request, lines, parent, variables)


def _layer_key(
    request: Request, lines: str, parent: ParentPython, environment: Mapping[str, str]
) -> str:
    """Return the key of the layer: a digest of everything that determines the layer's packages.

    These are the requirements, the parent's interpreter and packages, the image, the installer, and
    the installer's variables except its cache folder. The model code counts only if the
    requirements name local files.
    """
    variables = sorted(
        f"{name}={value}"
        for name, value in environment.items()
        if name.startswith(_INSTALLER_VARIABLES) and name not in _FOLDER_VARIABLES
    )
    code = request.code_sha256 if _LOCAL_LINE.search(lines) else ""
    parts = (parent.identity, request.image, request.installer, lines, code, *variables)
    return hashlib.sha256("\0".join(parts).encode(errors="surrogateescape")).hexdigest()


def _install_layer(
    request: Request, lines: str, parent: ParentPython, key: str
) -> tuple[Path, bool]:
    """Install the packages into a new layer, or wait for another run's installation.

    Return the layer's folder, and whether this run has installed the layer. Delete the incomplete
    builds that killed runs left of the layer. Raises PackagesRefused or OSError, and then deletes
    the incomplete layer.
    """
    request.cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _lock(request.cache / f"{key}.lock"):
        layer = find_layer(request.cache, key)
        if layer is not None:
            return layer, False
        prefix = f"{BUILD_PREFIX}{key[:16]}-"
        for left in request.cache.glob(f"{prefix}*"):
            # No run builds this folder any more, because this process holds the lock.
            delete_tree(left)
        build = Path(tempfile.mkdtemp(prefix=prefix, dir=request.cache))
        try:
            make_overlay(build, parent, None, HARNESS)
            _run_installer(request, lines, build)
            finish_layer(build, request.cache, key)
        except FileExistsError:
            # The agent has fetched the layer in the meantime.
            layer = find_layer(request.cache, key)
            if layer is None:
                raise
            delete_tree(build)
            return layer, False
        except BaseException:
            delete_tree(build)
            raise
    return build, True


def _run_installer(request: Request, lines: str, build: Path) -> None:
    """Install the requirements into the overlay `build` by pip or uv.

    The requirements are the file of the model code that the request names. If the request names no
    file, `lines` are written to `build/requirements.txt` and installed. A missing pip is installed
    first. The installer's output goes to the trial's log. Raises PackagesRefused if pip or uv is
    missing or the installer fails; `build` may then contain a part of the packages.
    """
    requirements = request.code / request.file if request.file else build / "requirements.txt"
    if not request.file:
        requirements.write_text(lines, encoding="utf-8")
    python = str(overlay_python(build))
    environment = {**os.environ, "VIRTUAL_ENV": str(build), "PYTHONUSERBASE": str(build)}
    if request.installer == "uv":
        program = shutil.which("uv")
        if program is None:
            text = "there is no program uv; install uv there, or declare the packages as "
            raise PackagesRefused(f"{text}environment.pip")
        command = [program, "pip", "install", "--python", python, "--no-progress"]
    else:
        command = [python, "-m", "pip", "install", "--no-input", "--disable-pip-version-check"]
        command += ["--progress-bar", "off", "--no-warn-script-location"]
        _ensure_pip(python, environment)
    command += ["-r", str(requirements)]
    process = subprocess.run(command, cwd=request.code, env=environment, check=False)
    if process.returncode:
        raise PackagesRefused(
            f"{request.installer} ended with exit code {process.returncode} and installed nothing; "
            "the lines above give the reason"
        )


def _ensure_pip(python: str, environment: dict[str, str]) -> None:
    """Install Python's bundled pip if the interpreter `python` has no pip.

    `environment` are the variables of the started processes.
    Raises PackagesRefused if the interpreter has neither pip nor the bundled pip.
    """
    for options in (["-c", "import pip"], ["-m", "ensurepip"]):
        done = subprocess.run([python, *options], env=environment, capture_output=True, check=False)
        if done.returncode == 0:
            return
    raise PackagesRefused("this Python has no pip and no ensurepip; install pip there")


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Lock the file for the block, and create a missing file.

    Print a message before waiting for another run. Raises OSError if the file cannot be opened.
    """
    with path.open("wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("[detcloud] another run installs the same packages: waiting for it", flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
