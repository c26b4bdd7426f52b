"""The service `folder` in a container, and the user's end of a synchronised folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from detcloud.agent.tunnel_services import MODULES
from detcloud.client.folder_sync import FolderSync
from detcloud.client.ignore_rules import IgnoreRules
from detcloud.client.trial_folder import TrialFolder
from detcloud.shared.folder_sync.folder import SyncedFolder
from detcloud.shared.tunnel.services import FOLDER
from tests.conformance.container_runtime import begin
from tests.emulators.docker_engine import DockerEngine
from tests.integration.docker_node import USER, container_spec, docker_runtime
from tests.integration.trial_node import TrialNode, report_lines

SIZE_MAX = 10_000_000

PROGRAM = """
import os
os.symlink("/etc", "etc")
with open("made", "w") as file:
    file.write("theirs")
report("ready")
time.sleep(600)
"""


@pytest.mark.nightly
def test_folder_of_a_container_is_kept_the_same(tmp_path: Path, engine: DockerEngine) -> None:
    here = tmp_path / "here"
    (here / "a").mkdir(parents=True)
    # More than a frame, a pipe and a message of the engine have.
    (here / "a" / "large").write_bytes(bytes(range(256)) * 10_000)
    runtime = docker_runtime(engine, tmp_path)
    node = TrialNode(tmp_path, runtime=runtime, spec=container_spec())
    trial = begin(node, PROGRAM)
    node.watch(trial, lambda: report_lines(trial))
    code, reports = trial.directory.code, list[str]()
    rules = IgnoreRules(here)
    with runtime.spawn(trial.directory.agent, MODULES[FOLDER]) as connection:
        there = TrialFolder(connection, file_bytes_max=SIZE_MAX)
        assert there.locate() == str(code)
        folder = SyncedFolder(here, file_bytes_max=SIZE_MAX, is_synced=rules.names)
        sync = FolderSync(folder, there, rules=rules, backups=tmp_path / "b", report=reports.append)
        assert sync.finish()
        assert (code / "a" / "large").read_bytes() == (here / "a" / "large").read_bytes()
        assert (code / "a" / "large").stat().st_uid == USER
        assert (here / "made").read_text() == "theirs"
        (here / "made").unlink()
        assert sync.finish()
        assert not (code / "made").exists()
    assert reports == ["not kept the same: etc (is a link)"]
    trial.kill(0)
    node.watch(trial)
