"""A stopped shell saves its folder before the grace ends, as a process and in a container."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from detcloud.agent.allocation.allocation import Allocation
from tests.emulators.docker_engine import DockerEngine
from tests.integration.docker_node import container_spec, docker_runtime
from tests.integration.trial_node import TrialNode, exit_record, log_text, report_lines

SHELL = ["python3", "-m", "detcloud.launch.shell"]
KEPT = {"period_ms": 3_600_000, "bytes_max": 1_000_000}
GRACE_MS = 60_000


def begin_shell(node: TrialNode, name: str) -> Allocation:
    """Start a shell with a file in the folder, and wait until the folder is kept."""
    shell = node.begin(name, {"notes.txt": "typed"}, entrypoint=SHELL, snapshots=KEPT)
    node.watch(shell, (shell.directory.out / ".rank-keeper").exists)
    return shell


def check_saved_files(node: TrialNode, shell: Allocation) -> None:
    """Stop a shell, and check that the files are stored, and that SIGKILL was not needed."""
    (shell.directory.code / "more.txt").write_text("typed later")
    shell.kill(GRACE_MS)
    node.watch(shell)
    assert exit_record(shell)["reason"] == "killed", log_text(shell)
    [saved] = [line for line in report_lines(shell) if line["kind"] == "checkpoint"]
    store = node.folder / "store" / shell.allocation / saved["path"]
    with tarfile.open(store / "folder.tar") as archive:
        assert archive.getnames() == ["more.txt", "notes.txt"]
    # The keeper has stopped the shell itself, long before the end of the grace.
    assert "saved the folder: 2 entries, 16 bytes" in log_text(shell)


def test_stopped_process_saves_the_folder(tmp_path: Path) -> None:
    node = TrialNode(tmp_path)
    check_saved_files(node, begin_shell(node, "1.1"))


@pytest.mark.nightly
def test_stopped_container_saves_the_folder(tmp_path: Path, engine: DockerEngine) -> None:
    runtime = docker_runtime(engine, tmp_path)
    config = container_spec(bind_mounts=[])
    mounts = config["config"]["bind_mounts"]
    store = tmp_path / "store"
    store.mkdir(mode=0o777)
    mounts.append({"host_path": str(store), "container_path": str(store), "read_only": False})
    node = TrialNode(tmp_path, runtime=runtime, spec=config)
    check_saved_files(node, begin_shell(node, "1.1"))
