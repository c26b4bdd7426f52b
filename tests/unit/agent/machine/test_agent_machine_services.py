"""The services of an installed agent: the systemd unit, and the keeper."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from detcloud.agent.machine import keeper
from detcloud.agent.machine.layout import Layout, Settings, find_layout, read_settings
from detcloud.agent.machine.services import KeeperService, unit_text
from tests.patience import wait_until


@pytest.mark.parametrize("is_user_install", [False, True])
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_unit(tmp_path: Path, *, is_user_install: bool) -> None:
    layout = find_layout(is_user_install=is_user_install)
    unit = tmp_path / "detcloud-agent.service"
    text = unit_text(layout, sys.executable).replace(f"WorkingDirectory={layout.work}\n", "")
    # The user does not exist on the machine of the tests.
    unit.write_text(text.replace("User=detcloud", "User=root").replace("Group=detcloud", ""))
    words = ["systemd-analyze", "--man=no", *(["--user"] * is_user_install), "verify", str(unit)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    complaints = [line for line in done.stderr.splitlines() if unit.name in line]
    assert not complaints


def test_unit_keeps_trials_and_grants_little() -> None:
    text = unit_text(find_layout(is_user_install=False), "/usr/bin/python3")
    for line in ("KillMode=process", "User=detcloud", "NoNewPrivileges=yes", "Restart=always"):
        assert line in text.splitlines()


def test_settings_survive_a_round_trip(tmp_path: Path) -> None:
    settings = Settings("http://s", "default", "gpu-1", "/w", options=("--cpu-slots=2",))
    path = tmp_path / "agent.json"
    path.write_bytes(settings.encode())
    assert read_settings(path) == settings
    newer = {**json.loads(path.read_bytes()), "later": 1}
    path.write_text(json.dumps(newer))
    assert read_settings(path) == settings
    path.write_text("[]")
    assert read_settings(path) is None


AGENT = """
import os, pathlib, signal, sys, time
work = pathlib.Path(sys.argv[0]).parent / "work"
signal.signal(signal.SIGHUP, lambda *_: sys.exit(0))
with (work / "starts").open("a") as file:
    file.write(f"{os.getpid()}\\n")
time.sleep(600)
"""


def test_keeper_restarts_and_stops_the_agent(tmp_path: Path) -> None:
    layout = Layout(tmp_path, tmp_path / "work", "", tmp_path / "units")
    layout.work.mkdir()
    layout.config.write_bytes(Settings("http://s", "p", "n", str(layout.work)).encode())
    shutil.copy(keeper.__file__, tmp_path / "keeper.py")
    (tmp_path / "launcher.py").write_text(AGENT)
    service = KeeperService(layout)

    def starts() -> list[int]:
        path = layout.work / "starts"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    service.start(sys.executable)
    try:
        wait_until(lambda: len(starts()) == 1)
        # A second keeper ends at once, and a running keeper is kept.
        service.start(sys.executable)
        subprocess.run([sys.executable, tmp_path / "keeper.py"], check=True, timeout=60)
        service.restart()
        wait_until(lambda: len(starts()) == 2)
        os.kill(starts()[-1], signal.SIGKILL)
        wait_until(lambda: len(starts()) == 3)
        assert service.is_running()
    finally:
        service.remove()
    assert not service.is_running()
    assert not (Path("/proc") / str(starts()[-1])).exists()
    service.remove()
