"""The file with the address and secret of a user's program, and the report of the file's place.

Connecting to the program needs a secret. The secret is in a file that only the trial's user can
read. The report, which everybody can read, contains only the file's path.
"""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

from detcloud.shared.trial_directory import TrialDirectory

ADDRESS = "127.0.0.1"


def location_path(kind: str) -> Path:
    """Return the path of the location file for a program of this kind, in the trial's home folder.

    Create nothing. Raises KeyError without HOME.
    """
    return Path(os.environ["HOME"]) / f"{kind}.json"


def write_location(kind: str, **fields: object) -> None:
    """Replace the content of the location file by `fields` as JSON.

    Only the user can read a file that this function creates; an existing file keeps its mode.
    Raises OSError if the file cannot be written or is a link, and KeyError without the variable
    HOME.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    descriptor = os.open(location_path(kind), flags, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(fields, file)


def report_location(kind: str, port: int) -> None:
    """Report the host, the port and the location file's path. Do nothing outside of a trial.

    The report is an `environment` line with the field `kind`. Raises DetcloudError if the trial's
    directory is invalid or the report cannot be written, and KeyError without the variable HOME.
    """
    directory = TrialDirectory.from_environment()
    if directory is not None:
        place = {"host": socket.gethostname(), "port": port, "file": str(location_path(kind))}
        directory.report.append("environment", **{kind: place})
