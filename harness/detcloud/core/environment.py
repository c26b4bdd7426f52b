"""The environment of this process, as it is reported: packages, devices, threads and code."""

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
    """The fields of an `environment` report; neither imports torch nor touches a device."""
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
    """SHA-256 over the sorted lines `SHA-256 of the file, two spaces, path, newline`.

    Links, folders and files whose name starts with a dot and compiled Python are left out, so
    running the code does not change its digest.
    """
    whole = hashlib.sha256()
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not _is_ignored(name))
        for name in sorted(names):
            path = Path(root, name)
            if path.is_symlink() or not path.is_file() or _is_ignored(name):
                continue
            with path.open("rb") as content:
                one = hashlib.file_digest(content, "sha256").hexdigest()
            whole.update(f"{one}  {path.relative_to(folder).as_posix()}\n".encode())
    return whole.hexdigest()


def _is_ignored(name: str) -> bool:
    return name.startswith(".") or name == "__pycache__" or name.endswith(".pyc")


@cache
def packages() -> tuple[str, ...]:
    """The installed packages as `name==version`; read once, since that takes a while."""
    # The fork server reads it for its trials (docs/benchmarks.md, `starts`).
    from importlib import metadata

    installed = {
        f"{one.metadata['Name']}=={one.version}"
        for one in metadata.distributions()
        if one.metadata["Name"]
    }
    return tuple(sorted(installed, key=str.lower))


def _devices() -> list[str]:
    gpus = [
        line.split(":", 1)[1].strip()
        for path in sorted(_GPU_FOLDER.glob("*/information"))
        for line in path.read_text().splitlines()
        if line.startswith("Model:")
    ]
    return [*gpus, _cpu_name()]


def _cpu_name() -> str:
    name = platform.processor() or platform.machine()
    if _CPU_FILE.exists():
        for line in _CPU_FILE.read_text().splitlines():
            if line.startswith("model name"):
                name = line.split(":", 1)[1].strip()
                break
    return f"{name} ({os.cpu_count()} threads)"
