"""Calls of `python -m infra.deploy` with settings of a team, and with a stub of Pulumi's engine."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from pulumi import automation

from infra import deploy
from infra.aws import program
from tests.unit.infra.engine_stub import Engine

DIGEST = "c" * 64
SETTINGS = """\
# Ours.
config:  # of the team
  detcloud:account: "111111111111"
  detcloud:region: us-east-1
  detcloud:clusterConfig: pools.yaml
  detcloud:archive: functions.zip
  detcloud:suggestArchive: suggest.zip
  detcloud:logDays: 30
  aws:profile: work
"""


class Run:
    """Calls of the module with the settings; each returns the exit code and the printed JSON.

    Tests replace operations of `program`.
    """

    def __init__(self, settings: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.program = program.PROGRAM
        self._settings = settings
        self._capsys = capsys

    def __call__(self, how: str, *flags: str) -> tuple[int, dict[str, Any]]:
        named = ["--team=vision", f"--settings={self._settings}", f"--admin-sha256={DIGEST}"]
        code = deploy.main([how, *named, *flags], lambda cloud: self.program)
        captured = self._capsys.readouterr()
        sys.stderr.write(captured.err)
        return code, json.loads(captured.out)


def write_settings(folder: Path) -> Path:
    """Write the settings and the files that they name, and return the path of the settings."""
    (folder / "pools.yaml").write_text("resource_pools: [{pool_name: default}]\n")
    for name in ("functions.zip", "suggest.zip"):
        (folder / name).write_bytes(b"PK\x05\x06" + bytes(18))
    file = folder / "Pulumi.vision.yaml"
    file.write_text(SETTINGS)
    return file


def install_engine(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Engine:
    """Let the machine seem to have the engine, with a stub, and return the stub."""
    found = folder / "pulumi"
    found.write_text("#!/bin/sh\nexit 1\n")
    found.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    stands_in = Engine()
    monkeypatch.setattr(automation, "create_or_select_stack", stands_in.select_stack)
    monkeypatch.setattr(automation, "select_stack", stands_in.find_stack)
    return stands_in
