"""People who are logged in at the machine's own screen or text console.

systemd's logind describes each session in a file below /run/systemd/sessions, which its library
reads, too. Other systems list logins in /run/utmp. A Mac's console device belongs to the user who
is logged in. Connections over ssh and sessions of services do not count.
"""

from __future__ import annotations

import os
import re
import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from detcloud.shared.files import read_regular_file

if TYPE_CHECKING:
    from collections.abc import Iterator

SESSIONS = "run/systemd/sessions"
UTMP = ("run/utmp", "var/run/utmp")
MAC_CONSOLE = "/dev/console"
# The type of a process of a logged-in user, from utmp(5).
_USER_PROCESS = 7
# The beginning of a record in utmp: type, process, line, id and user.
_UTMP = struct.Struct("=hxxi32s4s32s")
UTMP_BYTES = {"aarch64": 400}
"""The size of a record in utmp by architecture. Other architectures have 384 bytes."""
_TEXT_CONSOLE = re.compile(r"tty\d+|:\d+(\.\d+)?|console")


def has_login_records(root: Path = Path("/")) -> bool:
    """Return whether the machine records who is logged in."""
    if sys.platform == "darwin":
        return True
    return any((root / place).exists() for place in (SESSIONS, *UTMP))


def is_console_used(root: Path = Path("/")) -> bool:
    """Return whether a user is logged in at the machine. `root` is the folder of `run`.

    Return False for records that cannot be read.
    """
    if sys.platform == "darwin":
        try:
            return Path(MAC_CONSOLE).stat().st_uid != 0
        except OSError:
            return False
    if any(_is_at_seat(fields) for fields in _sessions(root / SESSIONS)):
        return True
    return any(_console_lines(root))


def _sessions(folder: Path) -> Iterator[dict[str, str]]:
    """Yield the fields of each session file. Files with a dot are no sessions, but pipes."""
    try:
        paths = sorted(folder.iterdir())
    except OSError:
        return
    for path in paths:
        content = None if "." in path.name else read_regular_file(path)
        lines = (content or b"").decode(errors="replace").splitlines()
        yield dict(line.split("=", 1) for line in lines if "=" in line)


def _is_at_seat(fields: dict[str, str]) -> bool:
    """Return whether a session is that of a user at a seat, and is not ending.

    The login screen has the class `greeter`. A user whose screen is locked counts.
    """
    return (
        bool(fields.get("SEAT"))
        and fields.get("REMOTE", "0") == "0"
        and fields.get("CLASS", "user").startswith("user")
        and fields.get("STATE", "active") in ("active", "online")
    )


def _console_lines(root: Path) -> Iterator[str]:
    """Yield the console of each login in utmp. Skip logins without a running process."""
    paths = [root / place for place in UTMP]
    path = next((path for path in paths if path.exists()), None)
    content = b"" if path is None else read_regular_file(path, follows_links=True) or b""
    size = UTMP_BYTES.get(os.uname().machine, 384)
    for offset in range(0, len(content) - size + 1, size):
        kind, process, line, _, user = _UTMP.unpack_from(content, offset)
        name = line.split(b"\0", 1)[0].decode(errors="replace")
        is_login = kind == _USER_PROCESS and bool(user.strip(b"\0"))
        if is_login and _TEXT_CONSOLE.fullmatch(name) and _is_running(process):
            yield name


def _is_running(process: int) -> bool:
    """Return whether a process exists. A crash leaves records of ended processes."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return process > 0
