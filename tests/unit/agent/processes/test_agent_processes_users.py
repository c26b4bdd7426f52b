"""Trials without a container run as users of the machine, with real changes of the user."""

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

from detcloud.agent.allocation.directory import AllocationDirectory
from detcloud.agent.assignment.agent_user import MachineUser
from detcloud.agent.processes.runtime import ProcessRuntime
from detcloud.agent.runtime import Launch, Phase
from detcloud.shared.files import delete_tree
from tests.patience import wait_until

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can start other users")

ADA = MachineUser(70_001, 70_002, (70_002, 70_003), "ada")
BOB = MachineUser(70_011, 70_012, (70_012,), "bob")


@pytest.fixture
def work() -> Any:
    """Return a work directory that all users can reach, unlike pytest's folders."""
    folder = Path(mkdtemp(dir="/tmp", prefix="detcloud-users-"))
    folder.chmod(0o711)
    (folder / "allocations").mkdir(mode=0o711)
    yield folder
    delete_tree(folder)


def lay_out(work: Path, name: str, user: MachineUser) -> AllocationDirectory:
    """Create the directory of an allocation of `user`."""
    directory = AllocationDirectory(work / "allocations", name)
    directory.create()
    directory.set_owner((user.uid, user.gid))
    directory.write_spec({"secret": name})
    directory.path.chmod(0o711)
    directory.change_owner()
    return directory


def launch_of(directory: AllocationDirectory, script: str, user: MachineUser) -> Launch:
    """Return a launch of a shell script as `user`."""
    variables = {"HOME": str(directory.home), "PATH": "/usr/bin:/bin"}
    return Launch(
        [("trial", ["/bin/sh", "-c", script])],
        variables,
        str(directory.code),
        str(directory.log),
        1 << 20,
        user=user,
        passed_folder=str(directory.home),
    )


def run(directory: AllocationDirectory, script: str, user: MachineUser) -> str:
    """Run a script as `user` to its end, and return the log."""
    runtime = ProcessRuntime()
    runtime.start(directory.agent, launch_of(directory, script, user))
    wait_until(lambda: runtime.poll(directory.agent).phase is Phase.ENDED)
    return directory.log.read_text()


def test_trial_has_user_group_and_further_groups(work: Path) -> None:
    log = run(lay_out(work, "1.1", ADA), "id -u; id -g; id -G; umask", ADA)
    assert log.split() == ["70001", "70002", "70002", "70003", "0022"]


def test_trial_cannot_become_root_again(work: Path) -> None:
    script = "grep -E '^(Uid|Gid|CapEff)' /proc/self/status"
    lines = [line.split()[1:] for line in run(lay_out(work, "1.1", ADA), script, ADA).splitlines()]
    assert lines == [["70001"] * 4, ["70002"] * 4, ["0" * 16]]


def test_written_files_belong_to_the_user(work: Path) -> None:
    directory = lay_out(work, "1.1", ADA)
    run(directory, "echo x > file; echo y > $HOME/file", ADA)
    for folder in (directory.code, directory.home):
        status = (folder / "file").stat()
        assert (status.st_uid, status.st_gid) == (ADA.uid, ADA.gid)


@pytest.mark.parametrize(
    "place", ["in/spec.json", "home", "out", "code", "agent", "agent/trial.log"]
)
def test_other_users_cannot_read_a_trial_directory(work: Path, place: str) -> None:
    victim = lay_out(work, "1.1", ADA)
    assert (victim.path / place).exists()
    script = f"if cat {victim.path / place} || ls {victim.path / place}; then echo LEAK; fi"
    log = run(lay_out(work, "2.1", BOB), script, BOB)
    assert log.count("Permission denied") == 2
    assert "LEAK" not in log


def test_trial_cannot_list_the_allocations(work: Path) -> None:
    log = run(lay_out(work, "1.1", ADA), f"ls {work} {work}/allocations ..", ADA)
    assert log.count("Permission denied") == 3


@pytest.mark.parametrize("name", ["launch.json", "exit.json", "process.json", "owner.json"])
def test_trial_cannot_write_the_agents_records(work: Path, name: str) -> None:
    directory = lay_out(work, "1.1", ADA)
    record = directory.agent / name
    log = run(directory, f"echo '{{}}' > {record}; rm -f {record}; mv {directory.agent} x", ADA)
    assert log.count("denied") == 3


def test_trial_cannot_signal_its_supervisor(work: Path) -> None:
    log = run(lay_out(work, "1.1", ADA), "kill -9 $PPID || echo alive", ADA)
    assert "alive" in log


def test_agent_kills_the_processes_of_the_user(work: Path) -> None:
    directory, runtime = lay_out(work, "1.1", ADA), ProcessRuntime()
    script = "setsid sleep 1000 & trap '' TERM; echo ready; while :; do sleep 1; done"
    runtime.start(directory.agent, launch_of(directory, script, ADA))
    wait_until(lambda: "ready" in directory.log.read_text())
    found = runtime.processes(directory.agent)
    runtime.kill(directory.agent, 0)
    wait_until(lambda: runtime.poll(directory.agent).phase is Phase.ENDED)
    assert found
    assert not [pid for pid in found if is_running(pid)]


def is_running(pid: int) -> bool:
    """Return whether the process exists and is no zombie."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def test_processes_end_with_a_killed_supervisor(work: Path) -> None:
    directory, runtime = lay_out(work, "1.1", ADA), ProcessRuntime()
    runtime.start(directory.agent, launch_of(directory, "sleep 1000", ADA))
    process = directory.agent / "process.json"
    wait_until(process.exists)
    record = json.loads(process.read_text())
    os.kill(record["supervisor"], signal.SIGKILL)
    wait_until(lambda: not is_running(record["pid"]))
    wait_until(lambda: runtime.poll(directory.agent).lost)


def test_spawned_module_runs_as_the_user(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory, runtime = lay_out(work, "1.1", ADA), ProcessRuntime()
    runtime.start(directory.agent, launch_of(directory, "sleep 1000", ADA))
    program = work / "python"
    program.write_text("#!/bin/sh\nid -u; id -G\n")
    program.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(program))
    with runtime.spawn(directory.agent, "any") as connection, connection.makefile() as output:
        assert output.read().split() == ["70001", "70002", "70003"]
    runtime.kill(directory.agent, 0)
    wait_until(lambda: runtime.poll(directory.agent).phase is Phase.ENDED)


def test_hook_of_another_user_passes(work: Path) -> None:
    directory, runtime = lay_out(work, "1.1", ADA), ProcessRuntime()
    launch = launch_of(directory, "", ADA)
    hook = ["/bin/sh", "-c", ': > "$HOME/hook-passed"; exec sleep 1000']
    runtime.start(directory.agent, replace(launch, stages=[("hook", hook), *launch.stages]))
    wait_until(lambda: runtime.poll(directory.agent).phase is Phase.RUNNING)
    assert runtime.poll(directory.agent).stage == "trial"
    runtime.kill(directory.agent, 0)
    wait_until(lambda: runtime.poll(directory.agent).phase is Phase.ENDED)
    assert runtime.poll(directory.agent).stage == "trial"


def test_later_agents_restore_the_owner(work: Path) -> None:
    lay_out(work, "1.1", ADA)
    directory = AllocationDirectory(work / "allocations", "1.1")
    directory.restore_owner()
    assert directory.owner == (ADA.uid, ADA.gid)


def test_agent_deletes_the_files_of_the_user(work: Path) -> None:
    directory = lay_out(work, "1.1", ADA)
    run(directory, "mkdir -p a/b && touch a/b/c && chmod 0 a/b && chmod 0 a", ADA)
    (work / "trash").mkdir()
    discarded = directory.discard(work / "trash")
    delete_tree(discarded)
    assert not discarded.exists()
