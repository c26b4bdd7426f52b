"""The package of the SSH server: of the allocation's Python, or installed into the home."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from detcloud.shared.files import delete_tree

PACKAGE = "asyncssh"
VERSION_MIN = (2, 18)
REQUIREMENT = f"{PACKAGE}>={VERSION_MIN[0]}.{VERSION_MIN[1]},<3"
INSTALL_SECONDS_MAX = 300
_FOLDER = "packages"
# Settings of pip that exclude `--target`.
_EXCLUDED = frozenset(("PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT"))


class PackageMissing(Exception):
    """The package could not be installed. The message names a remedy."""


def obtain_package(folder: Path, notify: Callable[[str], None]) -> None:
    """Make the package importable in this process, and install the package if necessary.

    One of several processes installs, and the others wait. The packages of the trial stay as they
    are, because only this process looks into the folder.

    Args:
        folder: the folder of the SSH server in the trial's home.
        notify: called with a sentence for the user before an installation.

    Raises:
        PackageMissing: pip failed, or is not installed.
        OSError: the folder cannot be written.
    """
    if is_installed():
        return
    target = folder / _FOLDER
    with (folder / f"{_FOLDER}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            notify(f"installing {PACKAGE} for the first SSH connection to this trial ...")
            _install(target)
    sys.path.insert(0, str(target))


def is_installed() -> bool:
    """Return whether this Python has the package in a new enough version."""
    try:
        version = metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        return False
    parts = version.split(".")[:2]
    return all(part.isdecimal() for part in parts) and tuple(map(int, parts)) >= VERSION_MIN


def _install(target: Path) -> None:
    """Install the package with pip into a new folder, which then becomes `target`."""
    build = Path(tempfile.mkdtemp(prefix=f"{_FOLDER}-", dir=target.parent))
    try:
        environment = {name: v for name, v in os.environ.items() if name not in _EXCLUDED}
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-input"]
        command += ["--disable-pip-version-check", "--target", str(build), REQUIREMENT]
        run = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=INSTALL_SECONDS_MAX,
            check=False,
        )
        if run.returncode != 0:
            raise PackageMissing(_failure(run.stderr))
        build.rename(target)
    except subprocess.TimeoutExpired:
        raise PackageMissing(_failure(f"pip took over {INSTALL_SECONDS_MAX} s")) from None
    finally:
        delete_tree(build)


def _failure(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    return (
        f"the SSH server needs the package {PACKAGE}, which could not be installed with "
        f"{sys.executable}: {lines[-1] if lines else 'pip failed'}; use an image that has it, or "
        f"add {PACKAGE} to environment.pip"
    )
