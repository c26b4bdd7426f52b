"""The files and folders of an installed agent.

    ROOT/agent.json            the settings of the agent
    ROOT/launcher.py           starts the agent of the present version
    ROOT/keeper.py             keeps the agent alive on machines without systemd
    ROOT/versions/NAME         a version: a virtual environment with the agent's code
    ROOT/versions/current      a link to the present version
    ROOT/versions/previous     a link to the version before
    WORK                       the agent's work directory

The agent's user owns the folder `versions` and the work directory, so that agents update
themselves. All other files belong to root in an installation for the whole machine.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

SYSTEM_ROOT = Path("/opt/detcloud")
SYSTEM_WORK = Path("/var/lib/detcloud-agent")
SYSTEM_UNITS = Path("/etc/systemd/system")
SYSTEM_USER = "detcloud"
UNIT = "detcloud-agent.service"


@dataclass(frozen=True)
class Layout:
    """The places of an installation."""

    root: Path
    work: Path
    """The agent's work directory."""
    user: str
    """The user whom the installer creates for the agent. "" for an installation of the present
    user.
    """
    units: Path
    """The folder of systemd units."""

    @property
    def versions(self) -> Path:
        """The folder of the versions."""
        return self.root / "versions"

    @property
    def current(self) -> Path:
        """The link to the present version."""
        return self.versions / "current"

    @property
    def config(self) -> Path:
        """The file with the settings."""
        return self.root / "agent.json"

    @property
    def join_token(self) -> Path:
        """The file of the join token, which the agent deletes after the first enrolment."""
        return self.work / "join.token"

    @property
    def unit(self) -> Path:
        """The file of the systemd unit."""
        return self.units / UNIT

    @property
    def is_system(self) -> bool:
        """Whether the installation belongs to the whole machine."""
        return bool(self.user)


@dataclass(frozen=True)
class Settings:
    """The settings of an installed agent, as stored in `agent.json`."""

    url: str
    pool: str
    name: str
    work: str
    """The path of the work directory."""
    pin: str = ""
    """The pin of the server's certificate, or ""."""
    label: str = ""
    options: tuple[str, ...] = ()
    """Further options of `python -m detcloud.agent`."""
    updates: bool = True
    """Whether the agent updates itself to the code of the cluster."""
    python: str = ""
    """The Python of the machine on which the versions are based."""
    environment: dict[str, str] = field(default_factory=dict)
    """Variables of the agent and of its trials."""

    def encode(self) -> bytes:
        """Encode the settings as JSON."""
        return json.dumps(asdict(self), indent=2).encode() + b"\n"


def find_layout(*, is_user_install: bool) -> Layout:
    """Return the places of an installation for the machine, or for the present user."""
    if not is_user_install:
        return Layout(SYSTEM_ROOT, SYSTEM_WORK, SYSTEM_USER, SYSTEM_UNITS)
    home = Path.home()
    data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local/share")
    config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    root = data / "detcloud-agent"
    return Layout(root, root / "work", "", config / "systemd/user")


def read_settings(path: Path) -> Settings | None:
    """Read the settings of an installation. Return None for a missing or damaged file."""
    try:
        stored = json.loads(path.read_bytes())
        known = {name: stored[name] for name in Settings.__dataclass_fields__ if name in stored}
        return Settings(**{**known, "options": tuple(known.get("options", ()))})
    except (OSError, ValueError, TypeError):
        return None
