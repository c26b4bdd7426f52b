"""The description of this process's environment for a report: packages, devices, threads
and code.
"""

from __future__ import annotations

import hashlib
import os
import platform
import socket
from functools import cache
from pathlib import Path
from typing import Any

_GPU_FOLDER = Path("/proc/driver/nvidia/gpus")
_CPU_FILE = Path("/proc/cpuinfo")


def environment(code: Path, threads: int | None) -> dict[str, Any]:
    """Return the fields of an `environment` report, without importing torch or opening a device.

    `code` is the folder of the training code, whose files are read. `threads` is the number of
    threads that the trial may use; None means all of the machine. Raises OSError if a file of the
    code cannot be read.
    """
    versions = dict(line.split("==", 1) for line in packages())
    return {
        "python": platform.python_version(),
        "torch": versions.get("torch"),
        "packages": list(packages()),
        "devices": _devices(),
        "threads": threads or os.cpu_count(),
        "code_sha256": code_digest(code),
        "hostname": socket.gethostname(),
    }


def code_digest(folder: Path) -> str:
    """Return the SHA-256 of the code in a folder, in hexadecimal digits.

    The digest covers a line for each file: `SHA-256 of the file, two spaces, path, newline`. The
    files of a folder, sorted by name, precede the files of its sorted subfolders. Links, names that
    start with a dot and compiled Python are skipped, so that running the code does not change the
    digest. Raises OSError if a file cannot be read.
    """
    digest = hashlib.sha256()
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not _is_ignored(name))
        for name in sorted(names):
            path = Path(root, name)
            if path.is_symlink() or not path.is_file() or _is_ignored(name):
                continue
            with path.open("rb") as content:
                file_digest = hashlib.file_digest(content, "sha256").hexdigest()
            digest.update(f"{file_digest}  {path.relative_to(folder).as_posix()}\n".encode())
    return digest.hexdigest()


def _is_ignored(name: str) -> bool:
    """Return whether a name is hidden or belongs to compiled Python."""
    return name.startswith(".") or name == "__pycache__" or name.endswith(".pyc")


@cache
def packages() -> tuple[str, ...]:
    """Return the installed packages as `name==version`, sorted by name.

    The result is cached for the life of the process, because reading the packages is slow.
    """
    # The fork server calls this before the first trial (docs/benchmarks.md, `starts`).
    from importlib import metadata

    installed = {
        f"{package.metadata['Name']}=={package.version}"
        for package in metadata.distributions()
        if package.metadata["Name"]
    }
    return tuple(sorted(installed, key=str.lower))


def _devices() -> list[str]:
    """Return the models of the NVIDIA GPUs, and last the processor's model."""
    gpus = [
        line.split(":", 1)[1].strip()
        for path in sorted(_GPU_FOLDER.glob("*/information"))
        for line in path.read_text().splitlines()
        if line.startswith("Model:")
    ]
    return [*gpus, _cpu_name()]


def _cpu_name() -> str:
    """Return the processor's model and the number of threads, as text."""
    name = platform.processor() or platform.machine()
    if _CPU_FILE.exists():
        for line in _CPU_FILE.read_text().splitlines():
            if line.startswith("model name"):
                name = line.split(":", 1)[1].strip()
                break
    return f"{name} ({os.cpu_count()} threads)"
