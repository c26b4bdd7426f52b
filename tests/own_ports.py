"""Ports of servers that tests restart."""

from __future__ import annotations

import json
from pathlib import Path

from detcloud.shared.ports import find_free_port


def record_own_port(home: Path) -> None:
    """Record a free port as the port of a former server, unless a port is recorded.

    Servers of other tests look for free ports from 8470 on. During a restart, such a server would
    take the port.
    """
    record = home / "port.json"
    if not record.exists():
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        record.write_text(json.dumps({"port": find_free_port()}))
