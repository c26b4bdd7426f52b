"""Updates of an installed agent."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from detcloud.agent import updates
from detcloud.agent.updates import PAUSE_MS, CodeUpdater
from detcloud.shared.http import Unreachable
from tests.patience import wait_until
from tests.unit.agent.machine.test_agent_machine_versions import WORKING, digest_of

OFFER: dict[str, Any] = {"version": "2", "sha256": digest_of(WORKING), "now": False}
NAME = f"2-{digest_of(WORKING)[:12]}"


class Installation:
    """An installed agent of release 1, whose cluster offers WORKING."""

    def __init__(self, root: Path, *, is_automatic: bool = True) -> None:
        self.work = root / "work"
        self.versions = root / "versions"
        self.prefix = self.versions / "1-old"
        self.lines: list[str] = []
        self.downloads = 0
        self.content = WORKING
        self.now_ms = PAUSE_MS
        for folder in (self.work, self.prefix):
            folder.mkdir(parents=True, exist_ok=True)
        mark = {"version": "1", "sha256": hashlib.sha256(b"old").hexdigest()}
        (self.prefix / "detcloud.json").write_text(json.dumps({**mark, "python": sys.executable}))
        (self.versions / "current").symlink_to("1-old")
        self.updater = CodeUpdater(
            root,
            self.work,
            self.download,
            self.lines.append,
            is_automatic=is_automatic,
            prefix=self.prefix,
            now_ms=lambda: self.now_ms,
        )

    def download(self, path: str, file: BinaryIO) -> int:
        self.downloads += 1
        if not self.content:
            raise Unreachable("cut off")
        return file.write(self.content)

    def update(self, offer: dict[str, Any] = OFFER, *, is_idle: bool = True) -> bool:
        """Poll until an update is over, and return whether the agent must end."""
        if self.updater.poll(offer, is_idle=is_idle):
            return True
        wait_until(lambda: self.updater._thread is None or not self.updater._thread.is_alive())
        return self.updater.poll(offer, is_idle=is_idle)

    @property
    def current(self) -> str:
        return str((self.versions / "current").readlink())


def test_idle_agent_installs_the_offered_code(tmp_path: Path) -> None:
    installation = Installation(tmp_path)
    assert installation.update()
    assert installation.current == NAME
    assert str((installation.versions / "previous").readlink()) == "1-old"


def test_busy_agent_updates_only_on_request(tmp_path: Path) -> None:
    installation = Installation(tmp_path)
    assert not installation.update(is_idle=False)
    assert installation.downloads == 0
    assert installation.update({**OFFER, "now": True}, is_idle=False)


def test_updates_can_be_turned_off(tmp_path: Path) -> None:
    installation = Installation(tmp_path, is_automatic=False)
    assert not installation.update()
    assert installation.update({**OFFER, "now": True})


@pytest.mark.parametrize("offer", [None, {}, {"sha256": ""}])
def test_no_offer_changes_nothing(tmp_path: Path, offer: dict[str, Any] | None) -> None:
    installation = Installation(tmp_path)
    assert not installation.updater.poll(offer, is_idle=True)
    assert installation.current == "1-old"


def test_running_code_is_not_installed_again(tmp_path: Path) -> None:
    installation = Installation(tmp_path)
    assert not installation.update({**OFFER, "sha256": installation.updater.digest, "now": True})
    assert installation.downloads == 0


@pytest.mark.parametrize("content", [b"", b"damaged"])
def test_failed_update_waits_before_the_next(
    tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    installation = Installation(tmp_path)
    installation.content = content
    assert not installation.update()
    assert not installation.update()
    assert installation.downloads == 1
    assert "could not be installed" in installation.lines[-1]
    monkeypatch.setattr(updates, "RETRY_SECONDS", 0.0)
    installation.updater._retry_at = 0.0
    installation.content = WORKING
    assert installation.update()


def test_rejected_version_waits_for_an_admin(tmp_path: Path) -> None:
    installation = Installation(tmp_path)
    (installation.work / "rejected.json").write_text(json.dumps({"version": NAME}))
    assert not installation.update()
    assert installation.update({**OFFER, "now": True})


def test_two_servers_do_not_move_an_agent_to_and_fro(tmp_path: Path) -> None:
    installation = Installation(tmp_path)
    (installation.work / "updated.json").write_text(json.dumps({"time_ms": PAUSE_MS - 1}))
    assert not installation.update()
    installation.now_ms = 2 * PAUSE_MS
    assert installation.update()


def test_first_answer_confirms_the_version(tmp_path: Path) -> None:
    installation = Installation(tmp_path)
    installation.updater.confirm()
    assert json.loads((installation.work / "confirmed.json").read_bytes()) == {"version": "1-old"}
