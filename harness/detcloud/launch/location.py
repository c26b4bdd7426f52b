"""The file that says where a program of a user listens, and the report that says where it lies.

What is needed to connect is a secret. A file of the trial that only its user can read has it; the
report, which everybody can read, has the file's place alone.
"""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

from detcloud.shared.trial_directory import TrialDirectory

ADDRESS = "127.0.0.1"


def location_path(kind: str) -> Path:
    """The path of the file for a program of this kind, in the home of its trial."""
    return Path(os.environ["HOME"]) / f"{kind}.json"


def write_location(kind: str, **fields: object) -> None:
    """Write the fields as JSON into the file, which only its user may read."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    descriptor = os.open(location_path(kind), flags, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(fields, file)


def report_location(kind: str, port: int) -> None:
    """Report the host, the port and the path of the file; nothing outside of a trial."""
    directory = TrialDirectory.from_environment()
    if directory is not None:
        place = {"host": socket.gethostname(), "port": port, "file": str(location_path(kind))}
        directory.report.append("environment", **{kind: place})
