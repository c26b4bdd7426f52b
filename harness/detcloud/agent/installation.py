"""The id of an agent's work directory.

The cluster refuses a second agent under the name of a connected agent. A restarted agent has the
same work directory, and therefore the same id.
"""

import re
import secrets
from pathlib import Path

from detcloud.shared.files import read_json_object, write_atomically

_ID = re.compile(r"[0-9a-f]{32}")


def read_installation(work: Path) -> str:
    """Return the id of the work directory, 32 hexadecimal digits. Create the id if needed.

    Return "" if the id cannot be stored, for example because the disk is full: the cluster then
    accepts the agent without the check.

    Args:
        work: the work directory, which this process has locked.
    """
    path = work / "installation.json"
    stored = str((read_json_object(path) or {}).get("id", ""))
    if _ID.fullmatch(stored):
        return stored
    created = secrets.token_hex(16)
    try:
        write_atomically(path, {"id": created})
    except OSError:
        return ""
    return created
