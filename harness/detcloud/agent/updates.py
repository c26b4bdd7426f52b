"""Updates of an installed agent to the code of the cluster."""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcloud.agent.machine.versions import (
    MARKER,
    VersionFailed,
    choose_version,
    install_version,
    read_digest,
    version_name,
)
from detcloud.shared.errors import DetcloudError
from detcloud.shared.files import read_json_object, write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import BinaryIO

RETRY_SECONDS = 600.0
# Servers of different releases beside each other must not move an agent to and fro.
PAUSE_MS = 3600 * 1000


class CodeUpdater:
    """Installs offered code of the cluster, and reports when the agent must end for the new code.

    An update that an admin requests is installed at once, and trials continue meanwhile. Other
    updates wait until the agent has no work. A version that failed to start waits for an admin.
    """

    def __init__(
        self,
        root: Path,
        work: Path,
        download: Callable[[str, BinaryIO], int],
        log_line: Callable[[str], None],
        *,
        is_automatic: bool,
        prefix: Path | None = None,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """Create an updater. Nothing is requested yet.

        Args:
            root: the folder of the installation.
            work: the agent's work directory.
            download: downloads a path of the cluster's API into a file.
            log_line: writes to the agent's log.
            is_automatic: whether the agent updates itself without a request of an admin.
            prefix: the folder of the running version. None for the folder of this Python.
            now_ms: returns the time in epoch ms.
        """
        self._versions = root / "versions"
        self._work = work
        self._download = download
        self._log_line = log_line
        self._is_automatic = is_automatic
        self._prefix = prefix or Path(sys.prefix)
        self._now_ms = now_ms
        self._retry_at = 0.0
        self._thread: threading.Thread | None = None
        self._installed = ""
        self._is_confirmed = False

    @property
    def digest(self) -> str:
        """The digest of the running code. "" if the agent was not installed from an archive."""
        return read_digest(self._prefix)

    def confirm(self) -> None:
        """Record that the running version works, so that the launcher keeps the version."""
        if self._is_confirmed:
            return
        write_atomically(self._work / "confirmed.json", {"version": self._prefix.name})
        self._is_confirmed = True

    def poll(self, offer: dict[str, Any] | None, *, is_idle: bool) -> bool:
        """Begin or finish an update; return whether the agent must end for the new version.

        Args:
            offer: the field `code` of the cluster's last answer, or None.
            is_idle: whether the agent has no work.
        """
        sha256 = "" if offer is None else str(offer.get("sha256") or "")
        if not sha256 or offer is None or sha256 == self.digest:
            return False
        if self._thread is not None:
            if self._thread.is_alive():
                return False
            self._thread = None
        name = version_name(str(offer.get("version") or "0"), sha256)
        if offer.get("now") is not True and not (is_idle and self._may_update(name)):
            return False
        if self._installed == name:
            return self._choose(name)
        if time.monotonic() < self._retry_at:
            return False
        self._retry_at = time.monotonic() + RETRY_SECONDS
        words = (name, str(offer.get("version") or "0"), sha256)
        self._thread = threading.Thread(target=self._install, args=words, daemon=True)
        self._thread.start()
        return False

    def _may_update(self, name: str) -> bool:
        """Return whether an update without a request of an admin may start now."""
        if not self._is_automatic:
            return False
        if (read_json_object(self._work / "rejected.json") or {}).get("version") == name:
            return False
        last_ms = (read_json_object(self._work / "updated.json") or {}).get("time_ms")
        return not isinstance(last_ms, int) or abs(self._now_ms() - last_ms) >= PAUSE_MS

    def _choose(self, name: str) -> bool:
        """Choose an installed version for the next start. Return whether that succeeded."""
        try:
            write_atomically(self._work / "updated.json", {"time_ms": self._now_ms()})
            choose_version(self._versions, name)
        except OSError as error:
            self._log_line(f"version {name} could not be chosen: {error}")
            self._installed = ""
            return False
        self._log_line(f"version {name} starts now; trials continue")
        return True

    def _install(self, name: str, version: str, sha256: str) -> None:
        """Download and install a version. A failure is logged and tried again later."""
        self._log_line(f"installing version {name}, the code of the cluster")
        try:
            with tempfile.TemporaryFile(dir=self._work) as file:
                self._download(f"/api/v1/agent-code/{sha256}", file)
                file.seek(0)
                archive = file.read()
            python = json.loads((self._prefix / MARKER).read_bytes())["python"]
            self._installed = install_version(self._versions, version, sha256, archive, str(python))
        except (OSError, ValueError, KeyError, VersionFailed, DetcloudError) as error:
            self._log_line(f"version {name} could not be installed, trying again later: {error}")
