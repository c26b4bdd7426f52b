"""Packages that detcloud's own programs need in a trial, installed into the trial's home.

The packages of the trial stay as they are, because only detcloud's program looks into the folder.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from detcloud.shared.files import delete_tree

INSTALL_SECONDS_MAX = 300
_FOLDER = "packages"
# Settings of pip that exclude `--target`.
_EXCLUDED = frozenset(("PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT"))


class PackageMissing(Exception):
    """The package could not be installed. The message names a remedy."""


@dataclass(frozen=True)
class TrialPackage:
    """A package that a program of detcloud needs in a trial."""

    name: str
    version_min: tuple[int, int]
    """The oldest version that works, as its first two numbers."""
    major_end: int
    """The first number of the oldest version that may not work."""
    program: str
    """The words for the program, such as `the SSH server`."""

    @property
    def requirement(self) -> str:
        """The package with the range of versions, for pip."""
        return f"{self.name}>={self.version_min[0]}.{self.version_min[1]},<{self.major_end}"

    def is_installed(self) -> bool:
        """Return whether this Python has the package in a new enough version."""
        try:
            version = metadata.version(self.name)
        except metadata.PackageNotFoundError:
            return False
        parts = version.split(".")[:2]
        return all(part.isdecimal() for part in parts) and (
            tuple(map(int, parts)) >= self.version_min
        )

    def obtain(self, folder: Path, notify: Callable[[], None]) -> None:
        """Make the package importable in this process, and install the package if necessary.

        One of several processes installs, and the others wait.

        Args:
            folder: the folder of the program in the trial's home, which exists.
            notify: called before an installation.

        Raises:
            PackageMissing: pip failed, or is not installed.
            OSError: the folder cannot be written.
        """
        if self.is_installed():
            return
        target = folder / _FOLDER
        with (folder / f"{_FOLDER}.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not target.is_dir():
                notify()
                self._install(target)
        sys.path.insert(0, str(target))

    def _install(self, target: Path) -> None:
        """Install the package with pip into a new folder, which then becomes `target`."""
        build = Path(tempfile.mkdtemp(prefix=f"{_FOLDER}-", dir=target.parent))
        try:
            environment = {name: v for name, v in os.environ.items() if name not in _EXCLUDED}
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-input"]
            command += ["--disable-pip-version-check", "--target", str(build), self.requirement]
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
                raise PackageMissing(self._failure(run.stderr))
            build.rename(target)
        except subprocess.TimeoutExpired:
            raise PackageMissing(self._failure(f"pip took over {INSTALL_SECONDS_MAX} s")) from None
        finally:
            delete_tree(build)

    def _failure(self, output: str) -> str:
        lines = [line for line in output.splitlines() if line.strip()]
        return (
            f"{self.program} needs the package {self.name}, which could not be installed with "
            f"{sys.executable}: {lines[-1] if lines else 'pip failed'}; use an image that has it, "
            f"or add {self.name} to environment.pip"
        )
