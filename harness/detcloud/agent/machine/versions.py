"""Versions of the agent on a machine: installation from an archive, choice and removal.

A version needs no package index: the archive of the agent's code needs no other package. The
virtual environment shows the packages of the machine's Python, which trials without containers use.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path

from detcloud.agent.machine.launcher import link
from detcloud.agent.machine.server_access import unpack

MARKER = "detcloud.json"
"""The file of a complete version, with the digest of the archive."""
_PROBE = """
import json, sys, sysconfig
print(json.dumps({
    "version": list(sys.version_info[:2]),
    "packages": sysconfig.get_path("purelib") if sys.prefix != sys.base_prefix else "",
}))
"""
PYTHON_MIN = (3, 11)


class VersionFailed(Exception):
    """A version cannot be installed. The message says what to do."""


def version_name(version: str, sha256: str) -> str:
    """Return the name of a version's folder."""
    return f"{version}-{sha256[:12]}"


def install_version(versions: Path, version: str, sha256: str, archive: bytes, python: str) -> str:
    """Install an archive of the agent's code, and return the name of the version.

    A complete version is kept. The version is not started.

    Args:
        versions: the folder of the versions.
        version: the release, for the name.
        sha256: the expected SHA-256 of the archive.
        archive: the content of the archive.
        python: the Python on which the version is based.

    Raises:
        VersionFailed: the archive is damaged, the Python is too old, or the code does not start.
        OSError: a file cannot be written.
    """
    name = version_name(version, sha256)
    folder = versions / name
    if read_digest(folder) == sha256:
        return name
    if hashlib.sha256(archive).hexdigest() != sha256:
        raise VersionFailed("the archive of the agent's code is damaged; try again")
    shutil.rmtree(folder, ignore_errors=True)
    packages = _make_environment(folder, python)
    unpack(archive, str(packages))
    _run(
        [str(folder / "bin/python"), "-P", "-c", "import detcloud.agent.__main__"],
        "the agent's code does not start",
    )
    marker = folder / MARKER
    with marker.open("w", encoding="utf-8") as file:
        json.dump({"version": version, "sha256": sha256, "python": python}, file)
        file.flush()
        os.fsync(file.fileno())
    return name


def _make_environment(folder: Path, python: str) -> Path:
    """Create a virtual environment without pip, and return the folder of packages."""
    probe = json.loads(_run([python, "-I", "-c", _PROBE], f"{python} does not work"))
    found = tuple(probe["version"])
    if found < PYTHON_MIN:
        text = f"{python} is Python {found[0]}.{found[1]}, but the agent needs 3.11 or newer"
        raise VersionFailed(f"{text}; name another Python with --python")
    options = ["-m", "venv", "--without-pip", "--system-site-packages", str(folder)]
    _run([python, "-I", *options], f"{python} -m venv does not work; install the module venv")
    [packages] = folder.glob("lib/python3*/site-packages")
    if probe["packages"]:
        # An environment that is based on an environment only sees the packages of the base.
        (packages / "machine.pth").write_text(probe["packages"] + "\n")
    return packages


def _run(command: list[str], problem: str) -> str:
    """Run a command, and return the output. Raise VersionFailed with `problem` if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    except PermissionError as error:
        text = "the agent's user cannot execute it; name a Python for all users with --python"
        raise VersionFailed(f"{problem}: {text}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise VersionFailed(f"{problem}: {error}") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no output"]
        raise VersionFailed(f"{problem}: {lines[-1]}")
    return done.stdout


def read_digest(folder: Path) -> str:
    """Return the digest of the archive of a version. Return "" for an incomplete version."""
    try:
        return str(json.loads((folder / MARKER).read_bytes())["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def current_version(versions: Path) -> str:
    """Return the name of the present version, or "" without a present version."""
    try:
        return str((versions / "current").readlink())
    except OSError:
        return ""


def choose_version(versions: Path, name: str) -> bool:
    """Choose the version to start next, and remember the previous version. Raise OSError.

    Return whether the present version has changed.
    """
    before = current_version(versions)
    if before == name:
        return False
    if before:
        link(versions / "previous", before)
    link(versions / "current", name)
    return True


def delete_old_versions(versions: Path) -> list[str]:
    """Delete the versions that are neither present nor previous, and return the deleted names.

    A version that a running process uses is kept.
    """
    kept = {current_version(versions)}
    with contextlib.suppress(OSError):
        kept.add(str((versions / "previous").readlink()))
    commands = _command_lines()
    deleted = []
    for folder in sorted(versions.iterdir()):
        if folder.is_symlink() or not folder.is_dir() or folder.name in kept:
            continue
        if not any(f"{folder}/" in command for command in commands):
            shutil.rmtree(folder, ignore_errors=True)
            deleted.append(folder.name)
    return deleted


def _command_lines() -> list[str]:
    """Return the command lines of all visible processes."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(entry.read_bytes().decode(errors="replace"))
        except OSError:
            continue
    return found
