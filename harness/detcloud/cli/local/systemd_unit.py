"""The systemd unit of `detcloud server`, as text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

_PLAIN = re.compile(r"[A-Za-z0-9_./:=@,+\[\]-]+")

_UNIT = """\
# Written by `detcloud server install`, which replaces this file.
# `systemctl edit detcloud` adds settings of your own.
[Unit]
Description=detcloud server
Wants=network-online.target
After=network-online.target

[Service]
Type=notify
NotifyAccess=main
User={user}
Environment=HOME={data} PYTHONUNBUFFERED=1
EnvironmentFile=-{environment_file}
{folder}ExecStart={command}
Restart=always
RestartSec=2
{kill}TimeoutStopSec=60
LimitNOFILE=65536
UMask=0077
NoNewPrivileges=yes
ProtectSystem={system}
ProtectControlGroups=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectClock=yes
ProtectHostname=yes
RestrictSUIDSGID=yes
LockPersonality=yes
{more}
[Install]
WantedBy=multi-user.target
"""

# A stopping server stops its agent and the trials, which save checkpoints. After a crash of the
# server, the trials continue, and the next server takes over the trials.
_KILL_WITH_AGENT = "KillMode=process\n"
_KILL_WITHOUT_AGENT = "KillMode=mixed\n"

# Trials of the server's own agent need GPUs, data sets and the folders of their users.
_WITHOUT_AGENT = """\
PrivateTmp=yes
PrivateDevices=yes
ProtectHome=read-only
ProtectKernelLogs=yes
ProtectProc=invisible
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
SystemCallArchitectures=native
CapabilityBoundingSet=
"""


def render_unit(
    command: Sequence[str],
    user: str,
    data: Path,
    environment_file: Path,
    writable: Sequence[Path],
    *,
    has_agent: bool,
) -> str:
    """Return the text of the unit.

    Args:
        command: the command of the server.
        user: the user of the service.
        data: the data folder. A folder directly below /var/lib is created by systemd.
        environment_file: a file with variables, which may be missing.
        writable: further folders that the server writes, for example backups.
        has_agent: whether the server also runs trials, which need more of the machine.
    """
    is_state = data.parent == Path("/var/lib")
    folder = f"StateDirectory={quote(data.name)}\nStateDirectoryMode=0700\n" if is_state else ""
    folders = [*([] if is_state else [data]), *writable]
    paths = "".join(f"ReadWritePaths={quote(str(path))}\n" for path in folders)
    return _UNIT.format(
        user=user,
        data=quote(str(data)),
        environment_file=quote(str(environment_file)),
        folder=folder,
        command=" ".join(map(quote, command)),
        kill=_KILL_WITH_AGENT if has_agent else _KILL_WITHOUT_AGENT,
        # With `strict`, trials could only write to the folders of the service.
        system="full" if has_agent else "strict",
        more=("" if has_agent else _WITHOUT_AGENT) + paths,
    )


def quote(word: str) -> str:
    """Return a word of a unit's setting, with systemd's special characters escaped.

    Raises:
        ValueError: the word has a line break or another control character.
    """
    if not word.isprintable():
        raise ValueError(f"{word!r} contains a control character")
    if _PLAIN.fullmatch(word):
        return word
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return '"' + escaped.replace("$", "$$") + '"'
